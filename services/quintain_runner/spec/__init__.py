"""Reads and validates the evaluation file, and the files of its prompts."""
