"""Parses a delivery of a target's queue into a request. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from quintain.bus.base import Delivery
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.strings import sanitize_request_id, shorten
from quintain.contracts.token import SessionToken
from quintain.errors import BadRequest, Fault, PayloadTooLarge
from quintain.routes import (
    ACCEPT_HEADER,
    DEADLINE_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    PUBLISHED_AT_HEADER,
    REQUEST_ID_HEADER,
    TOKEN_HEADER,
)
from quintain.rpc.server import request_id_of

#: ``protocol.md`` §2.
MAX_BODY_BYTES = 1024 * 1024


#: A whole number in a header may be written as text, this long at most.
MAX_DIGITS = 18

#: A sentence about a request is this long at most: it may quote a name of the caller's, and it travels to the
#: ledger together with those of other callers.
MAX_MESSAGE_LENGTH = 500


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """One request as it came; ``problem`` is what is wrong with it where ``request`` is None. ``accepts``: what its
    caller asked for besides the final answer, such as `quintain.routes.ACCEPT_CHUNKS`."""

    token: SessionToken
    request_id: str
    deadline: int | None
    published_at: int | None
    body_sha256: str
    request: InvokeRequest | None
    problem: Fault | None
    accepts: frozenset[str]


def parse_request(delivery: Delivery, target: str) -> IncomingRequest:
    """What a delivery asks of this target.

    Raises `Unauthorized` for a token whose shape or checksum is wrong: that needs no ledger. Everything else that
    is wrong is a `problem`, for the ledger to refuse after it has looked at the token.
    """
    headers = delivery.headers
    token = SessionToken.parse(_text(headers, TOKEN_HEADER))
    request_id = sanitize_request_id(request_id_of(delivery))
    request: InvokeRequest | None = None
    problem: Fault | None = None
    try:
        deadline = _number(headers, DEADLINE_HEADER)
        request = _request(delivery, target, request_id)
    except Fault as fault:
        deadline, problem = None, truncate_message(fault)
    return IncomingRequest(
        token=token,
        request_id=request_id,
        deadline=deadline,
        published_at=_published_at(headers),
        body_sha256=hashlib.sha256(delivery.body).hexdigest(),
        request=request,
        problem=problem,
        accepts=_accepted_types(headers),
    )


def _request(delivery: Delivery, target: str, request_id: str) -> InvokeRequest:
    version = _number(delivery.headers, PROTOCOL_HEADER)
    if version not in {None, PROTOCOL_VERSION}:
        raise BadRequest(f"{PROTOCOL_HEADER}: this fleet speaks version {PROTOCOL_VERSION}, not {version}")
    if request_id != request_id_of(delivery):
        raise BadRequest(f"{REQUEST_ID_HEADER}: 1 to 128 characters, none of them U+0000")
    if len(delivery.body) > MAX_BODY_BYTES:
        raise PayloadTooLarge(f"The body has {len(delivery.body)} bytes; the limit is {MAX_BODY_BYTES}")
    request = InvokeRequest.from_wire(delivery.body)
    if request.requested_target is not None and request.requested_target != target:
        raise BadRequest(f"target: the body names {shorten(request.requested_target)!r}, the routing key {target!r}")
    return request


def truncate_message(fault: Fault) -> Fault:
    """The fault with a sentence of bounded length."""
    if len(fault.message) <= MAX_MESSAGE_LENGTH:
        return fault
    return type(fault)(
        f"{fault.message[:MAX_MESSAGE_LENGTH]}…", charged=fault.charged, retry_after_ms=fault.retry_after_ms
    )


def _text(headers: Mapping[str, object], name: str) -> str | None:
    value = headers.get(name)
    return value if isinstance(value, str) else None


def _number(headers: Mapping[str, object], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise BadRequest(f"{name}: a whole number")


def _accepted_types(headers: Mapping[str, object]) -> frozenset[str]:
    header = _text(headers, ACCEPT_HEADER)
    return frozenset(re.split(r"[,\s]+", header)) if header else frozenset()


def _published_at(headers: Mapping[str, object]) -> int | None:
    value = headers.get(PUBLISHED_AT_HEADER)
    return value if isinstance(value, int) else None
