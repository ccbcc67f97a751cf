"""Exports spans over OTLP/HTTP as the standard ``OTEL_*`` variables configure it; off by default."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import threading
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

#: How long the last spans of a process may take to be sent.
SHUTDOWN_TIMEOUT_SECONDS = 3.0


@contextlib.contextmanager
def export_spans(service: str, settings: TraceSettings) -> Iterator[None]:
    """Send the spans made inside as those of this service, where the settings name a receiver; the last of them go at
    the end. A receiver that is away costs spans and `SHUTDOWN_TIMEOUT_SECONDS`, never calls."""
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
        # It tries for as long as it would while the service runs: nobody waits for that.
        shutdown_thread = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
        shutdown_thread.start()
        shutdown_thread.join(SHUTDOWN_TIMEOUT_SECONDS)


def _resource(service: str, settings: TraceSettings) -> dict[str, str]:
    # What is named here would win over the operator's own OTEL_SERVICE_NAME.
    name = {} if settings.has_service_name else {"service.name": f"quintain-{service}"}
    return {**name, "service.version": importlib.metadata.version("quintain")}
