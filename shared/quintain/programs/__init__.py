"""Programs and processes that a configuration names, or that services start, and their sandbox."""
