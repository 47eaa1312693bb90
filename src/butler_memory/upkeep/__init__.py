"""Time passed: one file per job."""
