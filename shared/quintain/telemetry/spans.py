"""Spans: begun, told what is worth knowing, ended; and the context that travels with what is sent.

Without the library, or where nobody set it up, nothing is recorded and what came is passed on as it is. Errors are told
by their kind alone: an error's words may quote a model.
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
from quintain.telemetry.context import TRACEPARENT_HEADER, trace_id_in, traceparent_in
from quintain.telemetry.conventions import ERROR_TYPE, Kind, Opening, Value

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

#: What came with the work at hand, for a process that records nothing.
_passed_on: ContextVar[str | None] = ContextVar("quintain_traceparent", default=None)


class Span:
    """A span under way. One that nobody records takes everything and keeps nothing."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    @property
    def recorded(self) -> bool:
        """Whether anybody will see it: what is costly to tell need not be told otherwise."""
        return self._span is not None and self._span.is_recording()

    def rename(self, name: str) -> None:
        """Give it the name that was not known when it began."""
        if self._span is not None:
            self._span.update_name(name)

    def tell(self, attributes: Mapping[str, Value]) -> None:
        """Add what became known."""
        if self._span is not None:
            self._span.set_attributes(attributes)

    def fail(self, error_type: str) -> None:
        """It ended with an error of this kind."""
        if self._span is not None:
            self._span.set_attribute(ERROR_TYPE, error_type)
            self._span.set_status(trace.StatusCode.ERROR)


_UNRECORDED = Span()


class _Nothing(contextlib.AbstractContextManager[Span]):
    """The span of nobody, for as many as want it at once."""

    def __enter__(self) -> Span:
        return _UNRECORDED

    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()


def span(
    opening: Opening | Callable[[], Opening], *, parent: object = None, apart: bool = False
) -> contextlib.AbstractContextManager[Span, bool | None]:
    """A span around what is done inside; an exception that passes through is told by its kind.

    ``opening`` may be what makes it: where nobody records, nothing is made.
    ``parent`` is the header that came with the work; without a usable one the span belongs to what is under way here.
    ``apart`` begins a trace of its own, linked to what is under way.
    """
    came = None if parent is None else traceparent_in(parent)
    tracer = _tracer()
    if tracer is None:
        return _NOTHING if came is None else _passing_on(came)
    context = Context() if apart else None if came is None else _context_of(came)
    return _recorded(tracer, opening if isinstance(opening, Opening) else opening(), context, apart=apart)


@contextlib.contextmanager
def _recorded(tracer: Any, opening: Opening, context: Any, *, apart: bool) -> Iterator[Span]:
    current = trace.get_current_span().get_span_context()
    links = [trace.Link(current)] if apart and current.is_valid else None
    kind = trace.SpanKind[opening.kind.name]
    begun = tracer.start_span(opening.name, context=context, kind=kind, attributes=opening.attributes, links=links)
    with trace.use_span(begun, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        one = Span(begun)
        try:
            yield one
        except BaseException as error:
            one.fail(error_type_of(error))
            raise


def joining(opening: Opening, parent: object) -> contextlib.AbstractContextManager[Span, bool | None]:
    """A span of the trace that came with the work; where none came, none is begun."""
    if traceparent_in(parent) is None:
        return _NOTHING
    return span(opening, parent=parent)


def past(opening: Opening, *, seconds: float, parent: object = None, failed: str | None = None) -> None:
    """A span that ends now and began so many seconds ago: of what is known only afterwards."""
    came = traceparent_in(parent)
    tracer = _tracer()
    if tracer is None:
        return
    now = time.time_ns()
    kind = trace.SpanKind[opening.kind.name]
    begun = tracer.start_span(
        opening.name,
        context=None if came is None else _context_of(came),
        kind=kind,
        attributes=opening.attributes,
        start_time=now - int(seconds * 1e9),
    )
    if failed is not None:
        Span(begun).fail(failed)
    begun.end(now)


def traceparent() -> str | None:
    """The context of what is under way, for a header of what is sent; None where there is none."""
    if _INSTALLED:
        at = trace.get_current_span().get_span_context()
        if at.is_valid:
            return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"
    return _passed_on.get()


def context_headers() -> dict[str, str]:
    """The headers of `traceparent`: one, or none."""
    at = traceparent()
    return {} if at is None else {TRACEPARENT_HEADER: at}


def trace_id() -> str | None:
    """The id of the trace that is under way, for a line of a log."""
    at = traceparent()
    return None if at is None else trace_id_in(at)


def error_type_of(error: BaseException) -> str:
    """The kind of an error: the code of a fault, or of the fault it brings along; else its class."""
    fault = getattr(error, "fault", error)
    if isinstance(fault, Fault):
        return fault.code
    return "cancelled" if isinstance(error, CancelledError) else type(error).__qualname__


@contextlib.contextmanager
def _passing_on(came: str) -> Iterator[Span]:
    token = _passed_on.set(came)
    try:
        yield _UNRECORDED
    finally:
        _passed_on.reset(token)


def _context_of(came: str) -> Any:
    return TraceContextTextMapPropagator().extract({TRACEPARENT_HEADER: came})


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


__all__ = ["Kind", "Span", "context_headers", "joining", "past", "span", "trace_id", "traceparent"]
