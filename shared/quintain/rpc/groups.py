"""Sends requests of one session to one target in groups, and replies to one caller in groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quintain.bus.base import Bus, Envelope, HeaderValue
from quintain.contracts.group import (
    GROUP_CONTENT_TYPE,
    MAX_DEADLINE_SPREAD_MS,
    REPLY_GROUP_TYPE,
    GroupItem,
    count_fitting,
    encode_item,
)
from quintain.routes import DEADLINE_HEADER, TOKEN_HEADER
from quintain.rpc.client import RpcClient
from quintain.rpc.request import GroupedRequest, RpcRequest
from quintain.runtime.batching import KeyedBatcher
from quintain.topology import REPLY


class RequestGroups:
    """Sends requests to the same target together.

    A request goes out at once while none to its target is under way, otherwise together with what has gathered when the
    broker has confirmed the message before. A request whose task is cancelled before is not sent.
    """

    def __init__(self, rpc_client: RpcClient) -> None:
        self._rpc_client = rpc_client
        self._batcher = KeyedBatcher[tuple[HeaderValue, str, int], GroupedRequest](
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
        await self._batcher.add(key, GroupedRequest(request, correlation_id, on_refused), max_batch=max_calls)

    async def _send(self, _: tuple[HeaderValue, str, int], requests: list[GroupedRequest]) -> None:
        if len(requests) == 1:
            await self._rpc_client.publish(requests[0].request, requests[0].correlation_id)
        else:
            await self._rpc_client.publish_group(requests)


class _Reply:
    """A reply that waits for its message."""

    __slots__ = ("_item", "reply")

    def __init__(self, reply: GroupItem) -> None:
        self.reply, self._item = reply, b""

    @property
    def item(self) -> bytes:
        """The reply as an item of a group."""
        self._item = self._item or encode_item(self.reply)
        return self._item


class ReplyGroups:
    """Sends replies to the same caller together, as `RequestGroups` sends requests."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._batcher = KeyedBatcher[str, _Reply](self._send, count=_count_replies)

    async def send(self, reply_to: str, reply: GroupItem) -> None:
        """Publish a reply to this routing key; raises what `Bus.publish` raises."""
        await self._batcher.add(reply_to, _Reply(reply))

    async def _send(self, reply_to: str, replies: list[_Reply]) -> None:
        if len(replies) == 1:
            reply = replies[0].reply
            envelope = Envelope(
                body=reply.body, type=reply.type, correlation_id=reply.correlation_id, headers=reply.headers
            )
        else:
            envelope = Envelope(
                body=b"".join(each.item for each in replies), type=REPLY_GROUP_TYPE, content_type=GROUP_CONTENT_TYPE
            )
        await self._bus.publish(REPLY, reply_to, envelope)


def _count_requests(requests: Sequence[GroupedRequest]) -> int:
    return 1 if len(requests) == 1 else count_fitting(len(request.item) for request in requests)


def _count_replies(replies: Sequence[_Reply]) -> int:
    return 1 if len(replies) == 1 else count_fitting(len(reply.item) for reply in replies)
