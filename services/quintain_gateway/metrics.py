"""The gateway's Prometheus metrics, and the transport that counts calls.

Label values are never taken from a request: unknown routes, methods and targets share one value each.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from quintain.client.amqp_transport import AmqpTransport
from quintain.client.sessions import Sessions
from quintain.client.transport import InvokeCall
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.session import Info
from quintain.errors import BusError, Cancelled, Fault
from quintain.observe.metrics import ServiceMetrics
from quintain.routes import ReplyT, RequestT, Route
from quintain.rpc.requests import RpcClient

#: The label of a call that named no target and has no result that names the default one.
DEFAULT_TARGET_LABEL = "(default)"

#: The label of a call that named a target which is not registered.
UNKNOWN_TARGET_LABEL = "(unknown)"


class GatewayMetrics(ServiceMetrics):
    """The Prometheus metrics of one gateway."""

    def __init__(self) -> None:
        """Create all metrics in the registry of this service."""
        super().__init__("gateway")
        #: The names of registered targets, which may be the values of a label.
        self.label_targets: set[str] = set()
        #: Whose replies that matched no pending request are counted.
        self.rpc_client: RpcClient | None = None
        # Labels have few values, so that the series of each combination is looked up once.
        self._requests_of = functools.cache(
            self.counter("requests", "HTTP requests", "route", "method", "status").labels
        )
        self._request_seconds_of = functools.cache(
            self.histogram(
                "request_seconds", "Seconds from the headers of a request to the end of its response", "route"
            ).labels
        )
        self.in_flight = self.gauge("requests_in_flight", "HTTP requests in progress")
        self._calls_of = functools.cache(
            self.counter("calls", "Ended calls by target and code", "target", "code").labels
        )
        self.connections = self.gauge("connections", "Open connections")
        self._rejected_connections = self.counter(
            "turned_away", "Connections answered or closed before a complete request", "reason"
        )
        self.add_callback(self._collect_unmatched_replies)

    def count_request(self, route: str, method: str, status: int, duration_seconds: float) -> None:
        """Count one HTTP request and record its duration.

        ``route`` is a path template and ``method`` an HTTP method or ``other``. ``status`` is 0 if no response was
        sent.
        """
        self._requests_of(route, method, str(status)).inc()
        self._request_seconds_of(route).observe(duration_seconds)

    def count_call(self, request: InvokeRequest | ApiRequest, code: str, *, served_by: str | None = None) -> None:
        """Count one ended call.

        ``code`` is the fault's code, or ``ok``. ``served_by`` is the name of the target that answered, if one did.
        """
        if served_by is not None:
            self.label_targets.add(served_by)
        name = served_by or request.requested_target
        target = DEFAULT_TARGET_LABEL if name is None else name if name in self.label_targets else UNKNOWN_TARGET_LABEL
        self._calls_of(target, code).inc()

    def count_rejected_connection(self, reason: str) -> None:
        """Count a connection that was answered or closed without a complete request; ``reason`` is a label value."""
        self._rejected_connections.labels(reason).inc()

    def _collect_unmatched_replies(self) -> Iterable[Metric]:
        unmatched_count = 0 if self.rpc_client is None else self.rpc_client.unmatched_replies
        yield CounterMetricFamily(
            self.full_name("unmatched_replies"), "Replies that matched no pending request", value=unmatched_count
        )


CODE_OK = "ok"
CODE_BUS_ERROR = "bus_error"


class CountingTransport(AmqpTransport):
    """The transport of one session, which counts its calls, also those of a batch.

    ``on_info`` is called with each `Info` reply.
    """

    def __init__(
        self,
        rpc_client: RpcClient,
        token: str,
        sessions: Sessions,
        *,
        metrics: GatewayMetrics,
        on_info: Callable[[Info], None],
    ) -> None:
        super().__init__(rpc_client, token, sessions)
        self._metrics, self._on_info = metrics, on_info

    async def invoke(self, call: InvokeCall) -> Result:
        """Same as `Transport.invoke`; counts the call by how it ended."""
        try:
            result = await super().invoke(call)
        except Fault as fault:
            self._metrics.count_call(call.request, fault.code)
            raise
        except BusError:
            self._metrics.count_call(call.request, CODE_BUS_ERROR)
            raise
        except asyncio.CancelledError:
            self._metrics.count_call(call.request, Cancelled.code)
            raise
        self._metrics.count_call(call.request, CODE_OK, served_by=result.target)
        return result

    async def call_route(self, route: Route[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float) -> ReplyT:
        """Same as `Transport.call_route`; passes each `Info` reply to ``on_info``."""
        reply = await super().call_route(route, request, timeout_seconds=timeout_seconds)
        if isinstance(reply, Info):
            self._on_info(reply)
        return reply
