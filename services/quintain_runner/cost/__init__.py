"""The cost of a run."""
