"""Sends requests of one session to one target in groups, and replies to one caller in groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quintain.bus.base import Bus, Envelope, HeaderValue
from quintain.contracts.group import (
    GROUP_CONTENT_TYPE,
    HEAD_ALLOWANCE,
    MAX_DEADLINE_SPREAD_MS,
    MAX_GROUP_BYTES,
    REPLY_GROUP_TYPE,
    GroupItem,
    encode_group,
)
from quintain.routes import DEADLINE_HEADER, TOKEN_HEADER
from quintain.rpc.client import RpcClient
from quintain.rpc.request import RpcRequest
from quintain.runtime.batching import KeyedBatcher
from quintain.topology import REPLY


class _Call(NamedTuple):
    """A request that waits to be sent, and whom to tell if its group is refused."""

    request: RpcRequest
    correlation_id: str
    on_refused: Callable[[], object]


class RequestGroups:
    """Sends requests to the same target together.

    A request goes out at once while none to its target is under way, otherwise together with what has gathered when the
    broker has confirmed the message before. A request whose task is cancelled before is not sent.
    """

    def __init__(self, rpc_client: RpcClient) -> None:
        self._rpc_client = rpc_client
        self._batcher = KeyedBatcher[tuple[HeaderValue, str, int], _Call](
            self._send, count=_count_requests, drops_cancelled=True
        )

    async def publish(
        self, request: RpcRequest, correlation_id: str, *, max_calls: int, on_refused: Callable[[], object]
    ) -> None:
        """Publish a request with up to ``max_calls`` in its message; raises what `RpcClient.publish` raises.

        ``on_refused`` is called where nobody could read the group; its requests are then sent again, each alone.
        """
        deadline = request.headers.get(DEADLINE_HEADER)
        if max_calls <= 1 or not isinstance(deadline, int):
            await self._rpc_client.publish(request, correlation_id)
            return
        key = (request.headers.get(TOKEN_HEADER), request.key, deadline // MAX_DEADLINE_SPREAD_MS)
        await self._batcher.add(key, _Call(request, correlation_id, on_refused), max_batch=max_calls)

    async def _send(self, _: tuple[HeaderValue, str, int], calls: list[_Call]) -> None:
        if len(calls) == 1:
            await self._rpc_client.publish(calls[0].request, calls[0].correlation_id)
        else:
            requests = [(call.request, call.correlation_id) for call in calls]
            await self._rpc_client.publish_group(requests, calls[0].on_refused)


class ReplyGroups:
    """Sends replies to the same caller together, as `RequestGroups` sends requests."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._batcher = KeyedBatcher[str, GroupItem](self._send, count=_count_replies)

    async def send(self, reply_to: str, reply: GroupItem) -> None:
        """Publish a reply to this routing key; raises what `Bus.publish` raises."""
        await self._batcher.add(reply_to, reply)

    async def _send(self, reply_to: str, replies: list[GroupItem]) -> None:
        if len(replies) == 1:
            (reply,) = replies
            envelope = Envelope(
                body=reply.body, type=reply.type, correlation_id=reply.correlation_id, headers=reply.headers
            )
        else:
            envelope = Envelope(body=encode_group(replies), type=REPLY_GROUP_TYPE, content_type=GROUP_CONTENT_TYPE)
        await self._bus.publish(REPLY, reply_to, envelope)


def _count_requests(calls: Sequence[_Call]) -> int:
    return _count_fitting([len(call.request.body) for call in calls])


def _count_replies(replies: Sequence[GroupItem]) -> int:
    return _count_fitting([len(reply.body) for reply in replies])


def _count_fitting(sizes: Sequence[int]) -> int:
    """Return how many of the first bodies of these sizes fit into one group; the first one goes in any case."""
    total = 0
    for count, size in enumerate(sizes):
        total += size + HEAD_ALLOWANCE
        if total > MAX_GROUP_BYTES:
            return max(count, 1)
    return len(sizes)
