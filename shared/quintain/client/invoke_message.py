"""The routing key, the body and a header of an invoke request, and its partial replies. No I/O."""

from __future__ import annotations

import contextlib

from quintain.bus.base import Delivery
from quintain.client.transport import InvokeCall
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import Chunk, InvokeRequest, Progress
from quintain.contracts.values import is_target_name
from quintain.errors import BadRequest
from quintain.routes import ACCEPT_CHUNKS, ACCEPT_GROUPS, ACCEPT_PROGRESS, CHUNK_TYPE, PROGRESS_TYPE

#: The fields that name the target.
_TARGET_FIELDS = {"target", "provider"}


def invoke_routing_key(request: InvokeRequest | ApiRequest) -> str:
    """Return the routing key of a request: its target's name, or an empty key, which the metadata service resolves.

    An invalid target name must not become a routing key; the empty key leads to `UnknownTarget` as well.
    """
    name = request.requested_target
    return name if name is not None and is_target_name(name) else ""


def invoke_body(request: InvokeRequest | ApiRequest, key: str) -> bytes:
    """Return the body to publish with this routing key, without the ``target`` that the key names already.

    A question thus has the same bytes, and is the same call, whether its target is named or the session's default.
    """
    return request.to_wire(_TARGET_FIELDS if key and request.target is not None else None)


def accept_header(call: InvokeCall) -> str:
    """Return the value of the header that requests partial messages, and allows them and the reply in a group."""
    callbacks = {ACCEPT_CHUNKS: call.on_chunk, ACCEPT_PROGRESS: call.on_progress}
    return ", ".join([*(name for name, callback in callbacks.items() if callback is not None), ACCEPT_GROUPS])


def dispatch_partial(call: InvokeCall, delivery: Delivery) -> None:
    """Pass a partial message to its callback. One that cannot be decoded is dropped: the complete result follows."""
    with contextlib.suppress(BadRequest):
        if delivery.type == CHUNK_TYPE and call.on_chunk is not None:
            call.on_chunk(Chunk.from_wire(delivery.body))
        elif delivery.type == PROGRESS_TYPE and call.on_progress is not None:
            call.on_progress(Progress.from_wire(delivery.body))
