"""Creates spans and propagates the trace context of messages.

Without OpenTelemetry, or without a configured provider, nothing is recorded and an incoming context is passed on
unchanged. Errors are recorded by type only, because an error message may quote a model.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from quintain.contracts.headers import TRACEPARENT_HEADER
from quintain.errors import Fault
from quintain.observe.semconv import ERROR_TYPE, AttributeValue, SpanStart

try:
    from opentelemetry import trace
    from opentelemetry.context import Context, get_current
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

Returned = TypeVar("Returned")

#: The environment variable with the trace context of the parent process, as OpenTelemetry defines it.
TRACEPARENT_VARIABLE = "TRACEPARENT"

#: The exact length of version 00; anything longer or shorter is not parsed.
_TRACEPARENT_LENGTH = 55
_TRACEPARENT_PATTERN = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

#: The trace context of the message being processed, in a process that records no spans.
_incoming_traceparent: ContextVar[str | None] = ContextVar("quintain_traceparent", default=None)


class Span:
    """A running span; if it is not recorded, its methods have no effect."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    @property
    def is_recording(self) -> bool:
        """Whether the span is recorded; check it before computing expensive attributes."""
        return self._span is not None and self._span.is_recording()

    def rename(self, name: str) -> None:
        """Change the span's name."""
        if self._span is not None:
            self._span.update_name(name)

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add attributes."""
        if self._span is not None:
            self._span.set_attributes(attributes)

    def set_error(self, error_type: str) -> None:
        """Mark the span as failed with this error type."""
        if self._span is not None:
            self._span.set_attribute(ERROR_TYPE, error_type)
            self._span.set_status(trace.StatusCode.ERROR)

    @property
    def traceparent(self) -> str | None:
        """The ``traceparent`` of its children; None if it is not recorded."""
        return None if self._span is None else _traceparent_of(self._span.get_span_context())

    def end(self) -> None:
        """End a span of `start_span`; only the first call has an effect."""
        if self._span is not None:
            self._span.end()
            self._span = None


_NO_OP_SPAN = Span()


class _NoOpContext(contextlib.AbstractContextManager[Span]):
    """A context manager with a span that is not recorded; stateless, so that one instance is shared."""

    def __enter__(self) -> Span:
        return _NO_OP_SPAN

    def __exit__(self, *_: object) -> None:
        pass


_NO_OP_CONTEXT = _NoOpContext()


def span(
    start: SpanStart | Callable[[], SpanStart], *, parent: object = None, new_trace: bool = False
) -> contextlib.AbstractContextManager[Span, bool | None]:
    """Context manager for a span; an exception that passes through is recorded by its type.

    - ``start`` may be a function, which is called only if the span is recorded.
    - ``parent`` is a received ``traceparent``; without a valid one the current span is the parent.
    - ``new_trace`` starts a new trace, linked to the current span.
    """
    incoming = None if parent is None else valid_traceparent(parent)
    recorder = tracer()
    if recorder is None:
        return _NO_OP_CONTEXT if incoming is None else _propagate_only(incoming)
    context = Context() if new_trace else None if incoming is None else _otel_context(incoming)
    return _recording_span(recorder, start if isinstance(start, SpanStart) else start(), context, new_trace=new_trace)


async def in_span(
    start: SpanStart | Callable[[], SpanStart],
    run: Callable[[Span | None], Awaitable[Returned]],
    *,
    parent: object = None,
) -> Returned:
    """Await ``run`` in a `span`, which it gets; it gets None where spans are not recorded, which costs next to nothing.

    Example::

        answer = await in_span(ADMIT, lambda admit_span: self._admit(admit_span))
    """
    if tracer() is not None:
        with span(start, parent=parent) as running:
            return await run(running)
    if parent is None or (incoming := valid_traceparent(parent)) is None:
        return await run(None)
    with _propagate_only(incoming):
        return await run(None)


def start_span(start: SpanStart) -> Span:
    """Start a child of the current span that does not become the current one; `Span.end` ends it."""
    recorder = tracer()
    if recorder is None:
        return _NO_OP_SPAN
    return Span(recorder.start_span(start.name, kind=trace.SpanKind[start.kind.name], attributes=start.attributes))


@contextlib.contextmanager
def _recording_span(tracer: Any, start: SpanStart, context: Any, *, new_trace: bool) -> Iterator[Span]:
    current = trace.get_current_span().get_span_context()
    links = [trace.Link(current)] if new_trace and current.is_valid else None
    kind = trace.SpanKind[start.kind.name]
    otel_span = tracer.start_span(start.name, context=context, kind=kind, attributes=start.attributes, links=links)
    with trace.use_span(otel_span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        wrapped = Span(otel_span)
        try:
            yield wrapped
        except BaseException as error:
            wrapped.set_error(error_type_of(error))
            raise


def span_in_trace(start: SpanStart, parent: object) -> contextlib.AbstractContextManager[Span, bool | None]:
    """Context manager for a span in the trace of a received ``traceparent``; without a valid one there is no span."""
    if valid_traceparent(parent) is None:
        return _NO_OP_CONTEXT
    return span(start, parent=parent)


def record_finished_span(
    start: SpanStart,
    *,
    duration_seconds: float,
    ended_seconds_ago: float = 0.0,
    parent: object = None,
    error_type: str | None = None,
) -> None:
    """Record a span that has ended, and had begun ``duration_seconds`` before."""
    incoming = valid_traceparent(parent)
    recorder = tracer()
    if recorder is None:
        return
    ended_at = time.time_ns() - int(ended_seconds_ago * 1e9)
    kind = trace.SpanKind[start.kind.name]
    otel_span = recorder.start_span(
        start.name,
        context=None if incoming is None else _otel_context(incoming),
        kind=kind,
        attributes=start.attributes,
        start_time=ended_at - int(duration_seconds * 1e9),
    )
    if error_type is not None:
        Span(otel_span).set_error(error_type)
    otel_span.end(ended_at)


def current_traceparent() -> str | None:
    """Return the current ``traceparent`` for an outgoing message, None if there is none."""
    if _INSTALLED and get_current():
        span_context = trace.get_current_span().get_span_context()
        if span_context.is_valid:
            return _traceparent_of(span_context)
    return _incoming_traceparent.get()


def _traceparent_of(span_context: Any) -> str:
    return f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{span_context.trace_flags:02x}"


def context_headers() -> dict[str, str]:
    """Return `current_traceparent` as headers, empty if there is none."""
    header = current_traceparent()
    return {} if header is None else {TRACEPARENT_HEADER: header}


def current_trace_id() -> str | None:
    """Return the current trace's id, 32 hexadecimal digits; None if there is none."""
    header = current_traceparent()
    return None if header is None else header[3:35]


def error_type_of(error: BaseException) -> str:
    """Return the type of an error: the code of a fault, or of its attribute ``fault``, else its class name."""
    fault = getattr(error, "fault", error)
    if isinstance(fault, Fault):
        return fault.code
    return "cancelled" if isinstance(error, CancelledError) else type(error).__qualname__


@contextlib.contextmanager
def _propagate_only(incoming: str) -> Iterator[Span]:
    token = _incoming_traceparent.set(incoming)
    try:
        yield _NO_OP_SPAN
    finally:
        _incoming_traceparent.reset(token)


def _otel_context(incoming: str) -> Any:
    return TraceContextTextMapPropagator().extract({TRACEPARENT_HEADER: incoming})


def tracer() -> Any:
    """Return the tracer, None if no OpenTelemetry provider is configured by the command or the application."""
    if not _INSTALLED:
        return None
    provider = _provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        # Every call asks several times: OpenTelemetry's own variable says the same as the tracer below, at less cost.
        if getattr(trace, "_TRACER_PROVIDER", provider) is None:
            return None
        if isinstance(provider.get_tracer("quintain"), trace.ProxyTracer):
            return None
        # A provider was configured since the last call.
        _provider.cache_clear()
        provider = _provider()
    return _tracer_of(provider)


@functools.cache
def _provider() -> Any:
    """Return OpenTelemetry's provider or its proxy; cached, because the lookup reads the environment."""
    return trace.get_tracer_provider()


@functools.lru_cache(maxsize=1)
def _tracer_of(provider: Any) -> Any:
    return provider.get_tracer("quintain")


def valid_traceparent(header: object) -> str | None:
    """Return the header if it is a valid trace context, else None. It may be any value of an untrusted caller."""
    if (
        not isinstance(header, str)
        or len(header) != _TRACEPARENT_LENGTH
        or _TRACEPARENT_PATTERN.fullmatch(header) is None
    ):
        return None
    return header
