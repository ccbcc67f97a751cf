"""Reads, checks and samples the cases of an evaluation."""
