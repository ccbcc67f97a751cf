"""Estimates a run and executes its trials."""
