"""The runner behind ``quintain run``: a dataset by targets by graders, kept as it goes, taken up again.

`evaluation` and `dataset` read what a person wrote, `plan` says what to ask, `trial` asks and grades one case,
`results` and `record` keep it, `progress` and `closing` show it, and `run` drives it all.
"""
