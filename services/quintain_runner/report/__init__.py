"""Shows a run, while it goes on and afterwards, and writes it in the formats of others."""
