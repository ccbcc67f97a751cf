"""Sends requests of one session to one target in groups, and replies to one caller in groups."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.contracts.group import (
    GROUP_CONTENT_TYPE,
    MAX_DEADLINE_SPREAD_MS,
    REPLY_GROUP_TYPE,
    GroupItem,
    count_fitting,
    encode_item,
)
from quintain.routes import ACCEPT_HEADER, DEADLINE_HEADER, TOKEN_HEADER
from quintain.rpc.client import RpcClient
from quintain.rpc.request import GroupedRequest, RpcRequest
from quintain.runtime.batching import KeyedBatchSender
from quintain.topology import REPLY

#: What the requests of a group have in common: the session, the messages besides the reply that they want, the target,
#: and about the same deadline.
_GroupKey = tuple[HeaderValue, HeaderValue, str, int]


class RequestGroups:
    """Sends requests to the same target together.

    A request goes out at once while none to its target is under way, otherwise together with what has gathered when the
    broker has confirmed the message before; as many as a message may have go at once. A request whose caller waits no
    more by then is not sent.
    """

    def __init__(self, rpc_client: RpcClient) -> None:
        self._rpc_client = rpc_client
        self._sender = KeyedBatchSender[_GroupKey, GroupedRequest](
            self._send, count=_count_requests, wanted=GroupedRequest.is_awaited
        )

    def add(
        self,
        request: RpcRequest,
        correlation_id: str,
        reply: asyncio.Future[Delivery],
        *,
        max_calls: int,
        on_refused: Callable[[], object],
    ) -> None:
        """Publish a request with up to ``max_calls`` in its message; ``reply`` gets what `RpcClient.publish` raises.

        ``on_refused`` is called where nobody could read the group; its requests are then sent again, each alone.
        """
        deadline = request.headers.get(DEADLINE_HEADER)
        interval = deadline // MAX_DEADLINE_SPREAD_MS if isinstance(deadline, int) else 0
        key = (request.headers.get(TOKEN_HEADER), request.headers.get(ACCEPT_HEADER), request.key, interval)
        self._sender.add(key, GroupedRequest(request, correlation_id, reply, on_refused), max_batch=max_calls)

    async def _send(self, _: _GroupKey, requests: list[GroupedRequest]) -> None:
        try:
            if len(requests) == 1:
                await self._rpc_client.publish(requests[0].request, requests[0].correlation_id)
            else:
                await self._rpc_client.publish_group(requests)
        except Exception as error:
            for request in requests:
                if request.is_awaited():
                    request.reply.set_exception(error)


class GroupedReply:
    """A reply that waits for its message; ``on_sent`` gets it when it was published, or with why it could not be."""

    __slots__ = ("_item", "on_sent", "reply")

    def __init__(self, reply: GroupItem, on_sent: Callable[[GroupedReply, Exception | None], Awaitable[None]]) -> None:
        self.reply, self.on_sent, self._item = reply, on_sent, b""

    @property
    def item(self) -> bytes:
        """The reply as an item of a group."""
        self._item = self._item or encode_item(self.reply)
        return self._item


class ReplyGroups:
    """Sends replies to the same caller together, as `RequestGroups` sends requests.

    With ``expiration_ms`` they are of no use later, and do not survive a restart of the broker.
    """

    def __init__(self, bus: Bus, expiration_ms: int | None = None) -> None:
        self._bus, self._expiration_ms = bus, expiration_ms
        self._sender = KeyedBatchSender[str, GroupedReply](self._send, count=_count_replies)

    def add(self, reply_to: str, reply: GroupedReply) -> None:
        """Publish a reply to this routing key."""
        self._sender.add(reply_to, reply)

    async def _send(self, reply_to: str, replies: list[GroupedReply]) -> None:
        if len(replies) == 1:
            reply = replies[0].reply
            envelope = Envelope(
                body=reply.body, type=reply.type, correlation_id=reply.correlation_id, headers=reply.headers
            )
        else:
            envelope = Envelope(
                body=b"".join([each.item for each in replies]), type=REPLY_GROUP_TYPE, content_type=GROUP_CONTENT_TYPE
            )
        if self._expiration_ms is not None:
            envelope = dataclasses.replace(envelope, expiration_ms=self._expiration_ms, persistent=False)
        error: Exception | None = None
        try:
            await self._bus.publish(REPLY, reply_to, envelope)
        except Exception as failure:
            error = failure
        for each in replies:
            await each.on_sent(each, error)


def _count_requests(requests: Sequence[GroupedRequest]) -> int:
    return 1 if len(requests) == 1 else count_fitting(len(request.item) for request in requests)


def _count_replies(replies: Sequence[GroupedReply]) -> int:
    return 1 if len(replies) == 1 else count_fitting(len(reply.item) for reply in replies)
