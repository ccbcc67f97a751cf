"""Says what a run requires, and executes its trials."""
