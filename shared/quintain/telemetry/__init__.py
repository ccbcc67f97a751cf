"""Traces: the one place that knows OpenTelemetry, its conventions, and what to do without it.

`spans` is the seam, `conventions` says how a span is named and what it tells, `export` sends spans away. Where the
library is missing, or nobody set it up, a span costs nothing worth naming, and the context that came along is passed on
all the same: whoever traces on both sides of us finds one trace.
"""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain.telemetry.export import exporting
else:
    __getattr__, __dir__ = lazy_exports(__name__, {"quintain.telemetry.export": ("exporting",)})

__all__ = ["exporting"]
