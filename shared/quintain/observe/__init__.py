"""What a service tells of itself: logs, spans, metrics and health.

`spans` creates spans, `semconv` defines their names and attributes, `export` sends them: the only users of
OpenTelemetry. Without the library, or without an exporter, spans cost almost nothing and an incoming trace context is
still propagated.
"""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain.observe.export import export_spans
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain.observe.export": ("export_spans",),
        },
    )

__all__ = [
    "export_spans",
]
