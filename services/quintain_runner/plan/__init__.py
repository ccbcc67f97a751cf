"""What a run executes: its trials, what becomes of the rows of before, and whose budget it has. No I/O."""
