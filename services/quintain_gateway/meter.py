"""What Prometheus reads: requests, calls and connections. Every label has few values, none of a stranger's making."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from quintain.caller import Caller
from quintain.contracts.invoke import InvokeRequest
from quintain.operations.meter import CALL_SECONDS, ServiceMeter

#: Of a call that named no target, and has no result to tell which one was the default.
DEFAULT_TARGET = "(default)"

#: Of a call that named a target nobody registered.
UNKNOWN_TARGET = "(unknown)"

_PREFIX = "quintain_gateway"


class Meter(ServiceMeter):
    """One gateway's numbers, in a registry of their own."""

    def __init__(self) -> None:
        super().__init__("gateway")
        self._targets: set[str] = set()
        self._requests = Counter(
            f"{_PREFIX}_requests", "Requests answered", ["route", "method", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            f"{_PREFIX}_request_seconds", "From the headers to the answer", ["route"], buckets=CALL_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.in_flight = Gauge(f"{_PREFIX}_requests_in_flight", "Requests being answered", registry=self.registry)
        self._calls = Counter(
            f"{_PREFIX}_calls", "Calls ended, by target and code", ["target", "code"], registry=self.registry
        )
        self.connections = Gauge(f"{_PREFIX}_connections", "Connections open", registry=self.registry)
        self._turned_away = Counter(
            f"{_PREFIX}_turned_away", "Answered before there was a request", ["reason"], registry=self.registry
        )
        self._replies = _Replies()
        self.registry.register(self._replies)

    def hears(self, caller: Caller) -> None:
        """Tell from now on how many answers came to this caller that nobody waited for."""
        self._replies.caller = caller

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is a template, ``method`` one of few, ``status`` 0 where nothing was answered."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def knows(self, targets: Iterable[str]) -> None:
        """Hear of registered targets: their names may be labels."""
        self._targets.update(targets)

    def called(self, request: InvokeRequest, code: str, *, served_by: str | None = None) -> None:
        """Count a call: ``code`` is its fault's, or ``ok``; ``served_by`` the target that answered, where one did."""
        if served_by is not None:
            self._targets.add(served_by)
        name = served_by or request.names
        target = DEFAULT_TARGET if name is None else name if name in self._targets else UNKNOWN_TARGET
        self._calls.labels(target, code).inc()

    def turned_away(self, reason: str) -> None:
        """Count a connection that got no further than its headers."""
        self._turned_away.labels(reason).inc()


class _Replies(Collector):
    """The answers that nobody waited for, as the caller counts them."""

    caller: Caller | None = None

    def collect(self) -> Iterable[Metric]:
        unmatched = 0 if self.caller is None else self.caller.unmatched
        yield CounterMetricFamily(
            f"{_PREFIX}_unmatched_replies", "Answers that nobody waited for any more", value=unmatched
        )
