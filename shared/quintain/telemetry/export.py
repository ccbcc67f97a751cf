"""Sending spans away over OTLP/HTTP, as the standard ``OTEL_*`` variables say; off where they say nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
from collections.abc import Iterator

from quintain.settings import TraceSettings

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

log = logging.getLogger(__name__)


@contextlib.contextmanager
def exporting(service: str, settings: TraceSettings) -> Iterator[None]:
    """Send the spans made inside as those of this service, where the settings name a receiver; the last of them go at
    the end. A receiver that is away costs spans, never calls."""
    if not settings.export:
        yield
        return
    if not _INSTALLED:
        log.info("No traces are sent, although OTEL_* names where to: pip install 'quintain[otel]'")
        yield
        return
    # The exporter, its batches and the sampler read their own standard variables.
    provider = TracerProvider(resource=Resource.create(_resource(service, settings)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def _resource(service: str, settings: TraceSettings) -> dict[str, str]:
    # What is named here would win over the operator's own OTEL_SERVICE_NAME.
    name = {} if settings.service_named else {"service.name": f"quintain-{service}"}
    return {**name, "service.version": importlib.metadata.version("quintain")}
