"""Traces: the one place that knows OpenTelemetry, its conventions, and what to do without it.

`spans` is the seam, `conventions` says how a span is named and what it tells, `export` sends spans away. Where the
library is missing, or nobody set it up, a span costs nothing worth naming, and the context that came along is passed on
all the same: whoever traces on both sides of us finds one trace.
"""
