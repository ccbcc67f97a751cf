"""Reading a delivery of a target's queue: what it asks, in whose name, until when. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from quintain.bus.base import Delivery
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.names import request_id_in, shown
from quintain.contracts.token import SessionToken
from quintain.errors import BadRequest, Fault, PayloadTooLarge
from quintain.routes import (
    ACCEPT_HEADER,
    DEADLINE_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    PUBLISHED_HEADER,
    REQUEST_ID_HEADER,
    TOKEN_HEADER,
)
from quintain.service import request_id_of

#: ``protocol.md`` §2.
MOST_BODY_BYTES = 1024 * 1024


#: A whole number in a header may be written as text, this long at most.
MOST_DIGITS = 18

#: A sentence about a request is this long at most: it may quote a name of the caller's, and it travels to the
#: ledger together with those of other callers.
MOST_SENTENCE = 500


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request as it came; ``problem`` is what is wrong with it where ``request`` is None. ``accepts``: what its
    caller asked for besides the final answer, such as `quintain.routes.ACCEPT_CHUNKS`."""

    token: SessionToken
    request_id: str
    deadline: int | None
    published: int | None
    body_sha256: str
    request: InvokeRequest | None
    problem: Fault | None
    accepts: frozenset[str]


def read(delivery: Delivery, target: str) -> Incoming:
    """What a delivery asks of this target.

    Raises `Unauthorized` for a token whose shape or checksum is wrong: that needs no ledger. Everything else that
    is wrong is a `problem`, for the ledger to refuse after it has looked at the token.
    """
    headers = delivery.headers
    token = SessionToken.parse(_text(headers, TOKEN_HEADER))
    request_id = request_id_in(request_id_of(delivery))
    request: InvokeRequest | None = None
    problem: Fault | None = None
    try:
        deadline = _number(headers, DEADLINE_HEADER)
        request = _request(delivery, target, request_id)
    except Fault as fault:
        deadline, problem = None, brief(fault)
    return Incoming(
        token=token,
        request_id=request_id,
        deadline=deadline,
        published=_published(headers),
        body_sha256=hashlib.sha256(delivery.body).hexdigest(),
        request=request,
        problem=problem,
        accepts=_accepted(headers),
    )


def _request(delivery: Delivery, target: str, request_id: str) -> InvokeRequest:
    version = _number(delivery.headers, PROTOCOL_HEADER)
    if version not in {None, PROTOCOL_VERSION}:
        raise BadRequest(f"{PROTOCOL_HEADER}: this fleet speaks version {PROTOCOL_VERSION}, not {version}")
    if request_id != request_id_of(delivery):
        raise BadRequest(f"{REQUEST_ID_HEADER}: 1 to 128 characters, none of them U+0000")
    if len(delivery.body) > MOST_BODY_BYTES:
        raise PayloadTooLarge(f"The body has {len(delivery.body)} bytes; the limit is {MOST_BODY_BYTES}")
    request = InvokeRequest.from_wire(delivery.body)
    if request.names is not None and request.names != target:
        raise BadRequest(f"target: the body names {shown(request.names)!r}, the routing key {target!r}")
    return request


def brief(fault: Fault) -> Fault:
    """The fault with a sentence of bounded length."""
    if len(fault.message) <= MOST_SENTENCE:
        return fault
    return type(fault)(f"{fault.message[:MOST_SENTENCE]}…", charged=fault.charged, retry_after_ms=fault.retry_after_ms)


def _text(headers: Mapping[str, object], name: str) -> str | None:
    value = headers.get(name)
    return value if isinstance(value, str) else None


def _number(headers: Mapping[str, object], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal() and len(value) <= MOST_DIGITS:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise BadRequest(f"{name}: a whole number")


def _accepted(headers: Mapping[str, object]) -> frozenset[str]:
    named = _text(headers, ACCEPT_HEADER)
    return frozenset(re.split(r"[,\s]+", named)) if named else frozenset()


def _published(headers: Mapping[str, object]) -> int | None:
    value = headers.get(PUBLISHED_HEADER)
    return value if isinstance(value, int) else None
