"""The transport of a session's client, instrumented: counts its calls, and reads the time and targets from `Info`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quintain.client.transport import BatchItem, InvokeCall, Transport
from quintain.clock import Clock
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.metadata import Info
from quintain.errors import BusError, Cancelled, Fault
from quintain.routes import Answer, Ask, Route
from quintain_gateway.metrics import GatewayMetrics

OK = "ok"
LOST = "bus_error"


class InstrumentedTransport:
    """Another transport, instrumented. ``on_info`` is called with each `Info` that comes."""

    def __init__(self, transport: Transport, metrics: GatewayMetrics, on_info: Callable[[Info], None]) -> None:
        self._transport, self._metrics, self._on_info = transport, metrics, on_info

    @property
    def clock(self) -> Clock:
        """As of the transport."""
        return self._transport.clock

    async def invoke(self, call: InvokeCall) -> Result:
        """As `Transport.invoke`; counts the call by how it ended."""
        try:
            result = await self._transport.invoke(call)
        except Fault as fault:
            self._metrics.called(call.request, fault.code)
            raise
        except BusError:
            self._metrics.called(call.request, LOST)
            raise
        except asyncio.CancelledError:
            self._metrics.called(call.request, Cancelled.code)
            raise
        self._metrics.called(call.request, OK, served_by=result.target)
        return result

    async def invoke_batch(self, items: Sequence[InvokeRequest | Fault], *, deadline_seconds: float) -> list[BatchItem]:
        """As `Transport.invoke_batch`. The gateway invokes the items of a batch one by one, so it counts nothing."""
        return await self._transport.invoke_batch(items, deadline_seconds=deadline_seconds)

    async def request(self, route: Route[Ask, Answer], ask: Ask, *, timeout_seconds: float) -> Answer:
        """As `Transport.request`."""
        answer = await self._transport.request(route, ask, timeout_seconds=timeout_seconds)
        if isinstance(answer, Info):
            self._on_info(answer)
        return answer

    def cancel_later(self, request_ids: Sequence[str]) -> None:
        """As `Transport.cancel_later`."""
        self._transport.cancel_later(request_ids)

    async def close(self) -> None:
        """As `Transport.close`."""
        await self._transport.close()
