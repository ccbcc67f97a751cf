"""Reads and validates the evaluation file, and lists the trials it asks for."""
