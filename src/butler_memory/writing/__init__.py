"""Somebody asks for a change: first the slow part with no connection held, then one short transaction."""
