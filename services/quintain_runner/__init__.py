"""Runs evaluations: a dataset by targets by graders, with results that are kept and can be resumed.

`spec` reads the evaluation file, `plan` reads cases and decides what a run executes, `graders` grade answers, `results`
stores rows and counts them, `statistics` evaluates them, `report` shows them, and `engine` runs the trials.
"""
