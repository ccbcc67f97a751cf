"""Requests of an `RpcClient`: their messages, alone or in a group, and what is kept of them until their reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quintain.bus.base import Delivery, Envelope, HeaderValue
from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE, GroupItem, encode_item
from quintain.observe.spans import context_headers
from quintain.routes import CALL_HEADERS, PROTOCOL_HEADER, PROTOCOL_VERSION
from quintain.topology import Exchange


class RpcRequest(NamedTuple):
    """A request to publish; ``deadline_seconds`` is how long its reply is awaited, from now."""

    exchange: Exchange
    key: str
    type: str
    body: bytes
    headers: Mapping[str, HeaderValue]
    deadline_seconds: float
    #: After how many seconds the broker may drop the request; by default ``deadline_seconds``.
    expires_seconds: float | None = None


#: Publishes a request under a correlation id in a message with others; where that fails, the future gets the error.
PublishLater = Callable[[RpcRequest, str, asyncio.Future[Delivery]], None]


@dataclass(frozen=True, slots=True)
class SentGroup:
    """A group that was sent; ``on_refused`` is called if it is answered as a whole."""

    correlation_id: str
    on_refused: Callable[[], object]


@dataclass(slots=True, eq=False)
class PendingCall:
    """The callback for replies with one correlation id, and the request that was last sent with it, if any.

    ``group`` is the group in which it was sent; None if it was sent alone.
    """

    on_reply: Callable[[Delivery], None]
    request: RpcRequest | None = None
    sent_at: float = 0.0
    group: SentGroup | None = None

    def remaining_request(self, now: float) -> RpcRequest | None:
        """Return the request with its remaining time; None if there is no request or no time left."""
        if self.request is None:
            return None
        deadline_seconds = self.request.deadline_seconds - (now - self.sent_at)
        expires_seconds = self.request.expires_seconds
        expires_seconds = None if expires_seconds is None else expires_seconds - (now - self.sent_at)
        if min(deadline_seconds, deadline_seconds if expires_seconds is None else expires_seconds) <= 0:
            return None
        return self.request._replace(deadline_seconds=deadline_seconds, expires_seconds=expires_seconds)


class GroupedRequest:
    """A request that waits for its message, its reply, and whom to tell if nobody can read the group."""

    __slots__ = ("_item", "correlation_id", "on_refused", "reply", "request")

    def __init__(
        self,
        request: RpcRequest,
        correlation_id: str,
        reply: asyncio.Future[Delivery],
        on_refused: Callable[[], object],
    ) -> None:
        self.request, self.correlation_id, self.reply, self.on_refused = request, correlation_id, reply, on_refused
        self._item = b""

    def is_awaited(self) -> bool:
        """Return whether the caller still waits for the reply."""
        return not self.reply.done()

    @property
    def item(self) -> bytes:
        """The request as an item of a group."""
        if not self._item:
            headers = {name: value for name, value in self.request.headers.items() if name in _ITEM_HEADERS}
            self._item = encode_item(GroupItem(self.correlation_id, self.request.body, headers))
        return self._item


def request_envelope(request: RpcRequest, correlation_id: str, reply_to: str) -> Envelope:
    """Return the message of a request that is sent alone."""
    return Envelope(
        body=request.body,
        type=request.type,
        correlation_id=correlation_id,
        reply_to=reply_to,
        headers=request.headers,
        expiration_ms=_expiration_ms(request),
    )


def group_envelope(requests: Sequence[GroupedRequest], correlation_id: str, reply_to: str) -> Envelope:
    """Return the message of several requests of one session to one target, each with its own correlation id."""
    common = {name: value for name, value in requests[0].request.headers.items() if name not in CALL_HEADERS}
    return Envelope(
        body=b"".join(request.item for request in requests),
        type=INVOKE_GROUP_TYPE,
        content_type=GROUP_CONTENT_TYPE,
        correlation_id=correlation_id,
        reply_to=reply_to,
        headers={**common, PROTOCOL_HEADER: PROTOCOL_VERSION},
        expiration_ms=max(_expiration_ms(request.request) for request in requests),
    )


#: The version is the message's.
_ITEM_HEADERS = CALL_HEADERS - {PROTOCOL_HEADER}


def _expiration_ms(request: RpcRequest) -> int:
    """Return after how many milliseconds the broker may drop the request."""
    expires_seconds = request.deadline_seconds if request.expires_seconds is None else request.expires_seconds
    return max(1, int(expires_seconds * 1000))


def with_trace_context(request: RpcRequest) -> RpcRequest:
    """Return the request with the current trace context in its headers, which a resent request keeps."""
    trace_headers = context_headers()
    return request._replace(headers={**request.headers, **trace_headers}) if trace_headers else request
