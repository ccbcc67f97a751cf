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

#: Timeout for sending the last spans of a process, in seconds.
SHUTDOWN_TIMEOUT_SECONDS = 3.0


@contextlib.contextmanager
def export_spans(service: str, settings: TraceSettings) -> Iterator[None]:
    """Export spans created while the context is open, if the settings enable it; the last ones are sent at the end.

    An unreachable collector costs spans and up to `SHUTDOWN_TIMEOUT_SECONDS`, but no calls.
    """
    if not settings.export:
        yield
        return
    if not _INSTALLED:
        log.info("Traces are not exported, although OTEL_* enables them: pip install 'quintain[otel]'")
        yield
        return
    # The exporter, the batch processor and the sampler read their own standard variables.
    provider = TracerProvider(resource=Resource.create(_resource(service, settings)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        # The shutdown retries for as long as a running service would, so it gets a thread and a shorter timeout.
        shutdown_thread = threading.Thread(target=provider.shutdown, name="shut down tracing", daemon=True)
        shutdown_thread.start()
        shutdown_thread.join(SHUTDOWN_TIMEOUT_SECONDS)


def _resource(service: str, settings: TraceSettings) -> dict[str, str]:
    # An attribute given here would override the operator's OTEL_SERVICE_NAME.
    name = {} if settings.has_service_name else {"service.name": f"quintain-{service}"}
    return {**name, "service.version": importlib.metadata.version("quintain")}
