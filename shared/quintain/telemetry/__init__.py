"""Tracing with OpenTelemetry, the only package that imports it.

`spans` creates spans, `semconv` defines their names and attributes, `export` sends them. Without the library, or
without an exporter, spans cost almost nothing and an incoming trace context is still propagated.
"""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain.telemetry.export import export_spans
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain.telemetry.export": ("export_spans",),
        },
    )

__all__ = [
    "export_spans",
]
