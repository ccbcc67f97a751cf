"""Grades answers: built-in graders, model judges, commands and Python functions."""
