"""The conversations that this worker holds: the queue of their turns, and who may go on with one.

A turn without a `Continuation.route` may be answered by any worker. One with the route of a worker is published to that
worker's own queue; where it comes to another worker, or is not taken in time, its conversation is lost.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

from quintain.bus.base import Bus, Consumer, Handler
from quintain.bus.failure_log import FailureLog
from quintain.contracts.agents import Continuation
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.quota import TryOutcome
from quintain.errors import BusError, ConversationLost
from quintain.topology import conversation_topology
from quintain_worker.providers.provider import Billing, OnText, Provider, ProviderAnswer, ProviderFailure

log = logging.getLogger(__name__)

#: How many turns are taken at a time: more than wait, so that none is taken for lost.
PREFETCH = 256


class TurnQueue:
    """The queue of the turns of those conversations with one target that this worker holds.

    It is declared for the first of them. ``handler`` gets the turns; it is set before the first answer.
    """

    def __init__(self, bus: Bus, target: str, incarnation: str) -> None:
        self._bus, self._topology = bus, conversation_topology(target, incarnation)
        #: The routing key of a turn.
        self.key = self._topology.bindings[0].key
        self.handler: Handler | None = None
        self._consumer: Consumer | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False
        begun, ended = "The queue of conversations cannot be consumed", "The queue of conversations is consumed"
        self._not_consumed = FailureLog(log, begun, ended, bus)

    async def open(self) -> bool:
        """Declare and consume the queue, unless that is done; returns False where the broker cannot be reached."""
        async with self._lock:
            if self._consumer is None and self.handler is not None and not self._is_closed:
                try:
                    await self._bus.declare(self._topology)
                    self._consumer = await self._bus.consume(self._topology.queues[0], self.handler, prefetch=PREFETCH)
                except BusError as error:
                    self._not_consumed.failed(error)
                else:
                    self._not_consumed.worked()
            return self._consumer is not None

    async def cancel(self) -> None:
        """Take no more turns: the worker stops. What comes now is told that its conversation is lost."""
        async with self._lock:
            self._is_closed = True
            if self._consumer is not None:
                await self._consumer.cancel()

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait up to ``timeout_seconds`` for the turns in flight. Returns False where some were cancelled."""
        return self._consumer is None or await self._consumer.drain(timeout_seconds)


class ConversationProvider:
    """A provider that refuses turns of conversations that others hold, and says where the next turn must come."""

    def __init__(self, provider: Provider, queue: TurnQueue) -> None:
        self._provider, self._queue = provider, queue

    async def answer(
        self, request: InvokeRequest | ApiRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Answer like the wrapped provider; of a conversation that this worker holds, with the route of its turns."""
        turn = None if isinstance(request, ApiRequest) else request.turn
        route = None if turn is None or turn.continuation is None else turn.continuation.route
        if route is not None and route != self._queue.key:
            fault = ConversationLost("The worker that held this conversation has ended, or does not take its turns")
            raise ProviderFailure(fault, Billing.UNBILLED, outcome=TryOutcome.NOT_SENT)
        # An `ApiRequest` comes with a provider that takes it.
        asked: Any = request
        answer = await self._provider.answer(asked, timeout_seconds=timeout_seconds, on_text=on_text)
        if not answer.holds_conversation or not await self._queue.open():
            return answer
        continuation = (answer.continuation or Continuation()).with_fields(route=self._queue.key)
        return dataclasses.replace(answer, continuation=continuation)

    async def close(self) -> None:
        """Close the wrapped provider."""
        await self._provider.close()
