"""Statistics of result rows: intervals, significance tests and their formatting."""
