"""Token prices and the cost of a run."""
