"""Creates spans and propagates the trace context of messages.

Without OpenTelemetry, or without a configured provider, nothing is recorded and an incoming context is passed on
unchanged. Errors are recorded by type only, because an error message may quote a model.
"""

from __future__ import annotations

import contextlib
import functools
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from quintain.errors import Fault
from quintain.telemetry.semconv import ERROR_TYPE, AttributeValue, SpanKind, SpanStart
from quintain.telemetry.trace_context import TRACEPARENT_HEADER, trace_id_of, valid_traceparent

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

#: What came with the work at hand, for a process that records nothing.
_incoming_traceparent: ContextVar[str | None] = ContextVar("quintain_traceparent", default=None)


class Span:
    """A span under way. One that nobody records takes everything and keeps nothing."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    @property
    def is_recording(self) -> bool:
        """Whether anybody will see it: what is costly to tell need not be told otherwise."""
        return self._span is not None and self._span.is_recording()

    def rename(self, name: str) -> None:
        """Give it the name that was not known when it began."""
        if self._span is not None:
            self._span.update_name(name)

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add what became known."""
        if self._span is not None:
            self._span.set_attributes(attributes)

    def set_error(self, error_type: str) -> None:
        """It ended with an error of this kind."""
        if self._span is not None:
            self._span.set_attribute(ERROR_TYPE, error_type)
            self._span.set_status(trace.StatusCode.ERROR)


_NO_OP_SPAN = Span()


class _NoOpContext(contextlib.AbstractContextManager[Span]):
    """The span of nobody, for as many as want it at once."""

    def __enter__(self) -> Span:
        return _NO_OP_SPAN

    def __exit__(self, *_: object) -> None:
        pass


_NO_OP_CONTEXT = _NoOpContext()


def span(
    start: SpanStart | Callable[[], SpanStart], *, parent: object = None, new_trace: bool = False
) -> contextlib.AbstractContextManager[Span, bool | None]:
    """A span around what is done inside; an exception that passes through is told by its kind.

    ``start`` may be what makes it: where nobody records, nothing is made.
    ``parent`` is the header that came with the work; without a usable one the span belongs to what is under way here.
    ``new_trace`` begins a trace of its own, linked to what is under way.
    """
    incoming = None if parent is None else valid_traceparent(parent)
    tracer = _tracer()
    if tracer is None:
        return _NO_OP_CONTEXT if incoming is None else _propagate_only(incoming)
    context = Context() if new_trace else None if incoming is None else _otel_context(incoming)
    return _recording_span(tracer, start if isinstance(start, SpanStart) else start(), context, new_trace=new_trace)


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
    """A span of the trace that came with the work; where none came, none is begun."""
    if valid_traceparent(parent) is None:
        return _NO_OP_CONTEXT
    return span(start, parent=parent)


def record_finished_span(
    start: SpanStart, *, duration_seconds: float, parent: object = None, error_type: str | None = None
) -> None:
    """A span that ends now and began so many seconds ago: of what is known only afterwards."""
    incoming = valid_traceparent(parent)
    tracer = _tracer()
    if tracer is None:
        return
    now = time.time_ns()
    kind = trace.SpanKind[start.kind.name]
    otel_span = tracer.start_span(
        start.name,
        context=None if incoming is None else _otel_context(incoming),
        kind=kind,
        attributes=start.attributes,
        start_time=now - int(duration_seconds * 1e9),
    )
    if error_type is not None:
        Span(otel_span).set_error(error_type)
    otel_span.end(now)


def current_traceparent() -> str | None:
    """The context of what is under way, for a header of what is sent; None where there is none."""
    if _INSTALLED:
        span_context = trace.get_current_span().get_span_context()
        if span_context.is_valid:
            return f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{span_context.trace_flags:02x}"
    return _incoming_traceparent.get()


def context_headers() -> dict[str, str]:
    """The headers of `current_traceparent`: one, or none."""
    header = current_traceparent()
    return {} if header is None else {TRACEPARENT_HEADER: header}


def current_trace_id() -> str | None:
    """The id of the trace that is under way, for a line of a log."""
    header = current_traceparent()
    return None if header is None else trace_id_of(header)


def error_type_of(error: BaseException) -> str:
    """The kind of an error: the code of a fault, or of the fault it brings along; else its class."""
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


def _tracer() -> Any:
    """The tracer, where somebody set one up: the command, or the program we are part of."""
    if not _INSTALLED:
        return None
    provider = _provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        if isinstance(provider.get_tracer("quintain"), trace.ProxyTracer):
            return None
        # Somebody was set up since.
        _provider.cache_clear()
        provider = _provider()
    return _tracer_of(provider)


@functools.cache
def _provider() -> Any:
    """Who makes tracers, or who stands in for whoever is set up later. Asked for once: to ask reads the environment."""
    return trace.get_tracer_provider()


@functools.lru_cache(maxsize=1)
def _tracer_of(provider: Any) -> Any:
    return provider.get_tracer("quintain")


__all__ = [
    "Span",
    "SpanKind",
    "context_headers",
    "current_trace_id",
    "current_traceparent",
    "record_finished_span",
    "span",
    "span_in_trace",
]
