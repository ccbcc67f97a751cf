"""What a run executes: its cases, its trials, what becomes of the rows of before, and whose budget it has."""
