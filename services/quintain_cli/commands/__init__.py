"""The commands: one module for each, or for several about one subject, as the table in `__main__` says."""
