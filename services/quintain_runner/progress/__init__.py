"""Shows the progress of a running evaluation."""
