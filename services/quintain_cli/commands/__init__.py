"""The commands: one module for each command, or for each group of commands."""
