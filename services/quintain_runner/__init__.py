"""Runs evaluations: a dataset by targets by graders, with results that are kept and can be resumed.

`spec` reads the evaluation file, `plan` decides what a run executes, `dataset` reads cases, `graders` grade answers,
`results` stores rows, `statistics` and `cost` evaluate them, `progress` and `report` show them, and `engine` runs the
trials.
"""
