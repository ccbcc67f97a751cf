"""The gateway's Prometheus metrics: requests, calls and connections. No label's value is chosen by a client."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from quintain.caller import Caller
from quintain.contracts.invoke import InvokeRequest
from quintain.operations.metrics import ServiceMetrics

#: The label of a call that named no target, and has no result to tell which one was the default.
DEFAULT_TARGET = "(default)"

#: The label of a call that named a target nobody registered.
UNKNOWN_TARGET = "(unknown)"


class GatewayMetrics(ServiceMetrics):
    """One gateway's metrics."""

    def __init__(self) -> None:
        super().__init__("gateway")
        self._targets: set[str] = set()
        self._caller: Caller | None = None
        self._requests = self.counter("requests", "Requests answered", "route", "method", "status")
        self._seconds = self.histogram("request_seconds", "From the headers to the answer", "route")
        self.in_flight = self.gauge("requests_in_flight", "Requests being answered")
        self._calls = self.counter("calls", "Calls ended, by target and code", "target", "code")
        self.connections = self.gauge("connections", "Connections open")
        self._turned_away = self.counter("turned_away", "Answered before there was a request", "reason")
        self.collect(self._collect_replies)

    def hears(self, caller: Caller) -> None:
        """Show from now on how many replies came to this caller that nobody waited for."""
        self._caller = caller

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is a template, ``method`` one of few, ``status`` 0 where nothing was answered."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def knows(self, targets: Iterable[str]) -> None:
        """Allow the names of these registered targets as labels."""
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

    def _collect_replies(self) -> Iterable[Metric]:
        unmatched = 0 if self._caller is None else self._caller.unmatched
        yield CounterMetricFamily(
            self.named("unmatched_replies"), "Answers that nobody waited for any more", value=unmatched
        )
