"""Writes, reads and shows the results of a run."""
