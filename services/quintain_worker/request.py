"""Parses a delivery of a target's queue into a request. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from quintain.bus.base import Delivery
from quintain.contracts.api_request import ApiRequest, read_request
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import (
    ACCEPT_HEADER,
    DEADLINE_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    PUBLISHED_AT_HEADER,
    REQUEST_ID_HEADER,
)
from quintain.contracts.invoke import FaultReply, InvokeRequest
from quintain.contracts.ledger import Admit
from quintain.contracts.message import MAX_BODY_BYTES
from quintain.contracts.values import sanitize_request_id, shorten
from quintain.errors import BadRequest, Fault, PayloadTooLarge
from quintain.rpc.server import Credential, call_credential, integer_header, request_id_of
from quintain_worker.inflight import CallIdentity

#: Error messages about a request are cut to this length, in characters: they may quote a name of the caller's, and
#: travel to the ledger in one batch with those of other callers.
MAX_MESSAGE_LENGTH = 500


class IncomingRequest(NamedTuple):
    """One parsed delivery. ``request`` is None where the request is invalid; ``problem`` then says why.

    ``deadline`` and ``published_at`` are milliseconds since the epoch. ``accepts`` lists the interim messages that the
    caller asked for, such as `quintain.routes.ACCEPT_CHUNKS`.
    """

    credential: Credential
    request_id: str
    deadline: int | None
    published_at: int | None
    body_sha256: str
    body_bytes: int
    request: InvokeRequest | ApiRequest | None
    problem: Fault | None
    accepts: frozenset[str]

    def identity(self, target: str) -> CallIdentity:
        """Return what a duplicate of this call has in common with it."""
        return CallIdentity(
            credential=self.credential.text,
            key=(self.credential.id, self.request_id),
            target=target,
            body_sha256=self.body_sha256,
            problem=None if self.problem is None else self.problem.message,
        )

    def admit(
        self,
        attempt_id: str,
        target: str,
        traceparent: str | None,
        *,
        alone: bool | None = None,
        copied: str | None = None,
    ) -> Admit:
        """Return the question whether this attempt may run; ``alone`` and ``copied`` are fields of `Admit`."""
        is_token = isinstance(self.credential, SessionToken)
        return Admit.unchecked(
            token=self.credential.text if is_token else None,
            session_id=None if is_token else self.credential.id,
            proof=None if is_token else self.credential.text,
            request_id=self.request_id,
            attempt_id=attempt_id,
            target=target,
            body_sha256=self.body_sha256,
            body_bytes=self.body_bytes,
            deadline=self.deadline,
            problem=None if self.problem is None else FaultReply.from_fault(self.problem),
            traceparent=traceparent,
            alone=alone,
            copy_of=copied,
        )


def parse_request(delivery: Delivery, target: str, check: Callable[[ApiRequest], None]) -> IncomingRequest:
    """Parse a delivery of this target's queue; ``check`` raises `BadRequest` for what its provider does not take.

    Raises `Unauthorized` for a token or a proof whose format is wrong, which needs no ledger. Every other error becomes
    the request's ``problem``: the ledger refuses it after it has checked the token or the proof.
    """
    headers, body = delivery.headers, delivery.body
    request: InvokeRequest | ApiRequest | None = None
    problem: Fault | None = None
    deadline: int | None = None
    named_id, body_sha256 = request_id_of(delivery), hashlib.sha256(body).hexdigest()
    request_id = sanitize_request_id(named_id)
    try:
        deadline = integer_header(headers, DEADLINE_HEADER)
    except BadRequest as unreadable:
        problem = unreadable
    credential = call_credential(headers, named_id, target, body_sha256, deadline)
    try:
        if problem is None:
            _check_message(headers, named_id, request_id, len(body))
            request = parse_body(body, target, check)
    except Fault as fault:
        problem = truncate_message(fault)
    published_at, accepts = headers.get(PUBLISHED_AT_HEADER), headers.get(ACCEPT_HEADER)
    return IncomingRequest(
        credential=credential,
        request_id=request_id,
        deadline=deadline,
        published_at=published_at if isinstance(published_at, int) else None,
        body_sha256=body_sha256,
        body_bytes=len(body),
        request=request,
        problem=problem,
        accepts=_split_types(accepts) if isinstance(accepts, str) else frozenset(),
    )


def _check_message(headers: Mapping[str, object], named_id: str, request_id: str, size: int) -> None:
    version = integer_header(headers, PROTOCOL_HEADER)
    if version not in {None, PROTOCOL_VERSION}:
        raise BadRequest(f"{PROTOCOL_HEADER}: this fleet speaks version {PROTOCOL_VERSION}, not {version}")
    if request_id != named_id:
        raise BadRequest(f"{REQUEST_ID_HEADER}: 1 to 128 characters, none of them U+0000")
    if size > MAX_BODY_BYTES:
        raise PayloadTooLarge(f"The body has {size} bytes; no session may send more than {MAX_BODY_BYTES}")


def parse_body(body: bytes, target: str, check: Callable[[ApiRequest], None]) -> InvokeRequest | ApiRequest:
    """Parse the body of a request for this target; ``check`` judges one in a vendor's words. Raises `BadRequest`."""
    request = read_request(body)
    if request.requested_target is not None and request.requested_target != target:
        raise BadRequest(f"target: the body names {shorten(request.requested_target)!r}, the routing key {target!r}")
    # A provider is told its target's name, whether the body names it or not.
    if isinstance(request, ApiRequest):
        check(request)
        return request._replace(target=target)
    return request if request.target == target else request.with_fields(target=target)


def truncate_message(fault: Fault) -> Fault:
    """Return the fault with a message of at most `MAX_MESSAGE_LENGTH` characters."""
    if len(fault.message) <= MAX_MESSAGE_LENGTH:
        return fault
    return type(fault)(
        f"{fault.message[:MAX_MESSAGE_LENGTH]}…",
        charged=fault.charged,
        retry_after_ms=fault.retry_after_ms,
    )


@lru_cache(maxsize=32)
def _split_types(header: str) -> frozenset[str]:
    return frozenset(re.split(r"[,\s]+", header)) if header else frozenset()
