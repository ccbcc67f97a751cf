"""Reads what pages show: from the record of a run, its results, its index and its notes."""
