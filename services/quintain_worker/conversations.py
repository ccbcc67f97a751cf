"""The conversations that this worker holds: the queue of their turns, and who may go on with one.

A turn without a `Continuation.route` may be answered by any worker. One with the route of a worker is published to that
worker's own queue; where it comes to another worker, or is not taken in time, its conversation is lost.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from quintain.bus.base import Bus
from quintain.contracts.agents import Continuation
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.quota import TryOutcome
from quintain.errors import ConversationLost
from quintain.rpc.own_queues import OwnQueue
from quintain.topology import conversation_topology
from quintain_worker.providers.provider import Billing, OnText, Provider, ProviderAnswer, ProviderFailure

#: How many turns are taken at a time: more than wait, so that none is taken for lost.
PREFETCH = 256


def new_turn_queue(bus: Bus, target: str, incarnation: str) -> OwnQueue:
    """Return the queue of the turns of those conversations with a target that a worker holds.

    It is opened for the first of them; its handler is set before.
    """
    return OwnQueue(bus, conversation_topology(target, incarnation), PREFETCH)


class ConversationProvider:
    """A provider that refuses turns of conversations that others hold, and says where the next turn must come."""

    def __init__(self, provider: Provider, queue: OwnQueue) -> None:
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
        if not answer.holds_conversation or not await self._queue.open_or_log():
            return answer
        continuation = (answer.continuation or Continuation()).with_fields(route=self._queue.key)
        return dataclasses.replace(answer, continuation=continuation)

    async def close(self) -> None:
        """Close the wrapped provider."""
        await self._provider.close()
