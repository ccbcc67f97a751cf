"""Plans, estimates and runs the trials of an evaluation."""
