"""Shows results of runs: `quintain view` on a port of this machine, and `quintain report --html` as a single file.

The modules named ``index`` find trials quickly, those named ``page`` are view models, `reading` fills them from a
results folder, `render` makes HTML of them, and `server` and `html_report` deliver it.
"""
