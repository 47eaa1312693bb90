"""Runs the jobs under leases; what a job does is given to it."""
