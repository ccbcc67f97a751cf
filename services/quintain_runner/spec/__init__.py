"""Reads and validates the evaluation file, and computes the list of trials that a run has to execute."""
