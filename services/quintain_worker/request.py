"""Parses a delivery of a target's queue into a request, and makes of it what the ledger is asked. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from quintain.bus.base import Delivery
from quintain.contracts.api_request import ApiRequest, parse_json, read_api_request
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import (
    ACCEPT_HEADER,
    DEADLINE_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    PUBLISHED_AT_HEADER,
    REQUEST_ID_HEADER,
    RETURNED_HEADER,
    WAIT_UNTIL_HEADER,
)
from quintain.contracts.invoke import FaultReply, InvokeRequest
from quintain.contracts.ledger import Admit
from quintain.contracts.message import MAX_BODY_BYTES
from quintain.contracts.values import sanitize_request_id, shorten
from quintain.errors import BadRequest, Fault, PayloadTooLarge
from quintain.rpc.server import Credential, call_credential, integer_header, request_id_of
from quintain.topology import BACKLOG, target_of_key
from quintain_worker.cost_bound import CostBound, CostRule

#: Error messages about a request are cut to this length, in characters: they may quote a name of the caller's, and
#: travel to the ledger in one batch with those of other callers.
MAX_MESSAGE_LENGTH = 500


def is_held(delivery: Delivery) -> bool:
    """Return whether this is the message of a call that a worker has, or had, for long."""
    return delivery.exchange == BACKLOG.name and delivery.routing_key != target_of_key(delivery.routing_key)


def is_begun(delivery: Delivery) -> bool:
    """Return whether a worker may have begun with a call: it was delivered before."""
    return delivery.redelivered or is_held(delivery)


def is_returned(delivery: Delivery) -> bool:
    """Return whether a worker that had no slot for the call has put it back before."""
    return RETURNED_HEADER in delivery.headers


_NO_BOUND = CostBound(None)


class IncomingRequest(NamedTuple):
    """One parsed delivery. ``request`` is None where the request is invalid; ``problem`` then says why.

    ``deadline``, ``wait_until`` and ``published_at`` are milliseconds since the epoch. ``accepts`` lists the interim
    messages that the caller asked for, such as `quintain.contracts.headers.ACCEPT_CHUNKS`.
    """

    credential: Credential
    request_id: str
    deadline: int | None
    wait_until: int | None
    published_at: int | None
    body_sha256: str
    body_bytes: int
    request: InvokeRequest | ApiRequest | None
    problem: Fault | None
    accepts: frozenset[str]
    is_redelivered: bool

    def age_ms(self, now: int) -> int:
        """How long ago it was sent, as far as that is known: in the queue, and in the line of its quota."""
        return 0 if self.published_at is None else max(0, now - self.published_at)

    def admit(
        self,
        attempt_id: str,
        target: str,
        traceparent: str | None,
        *,
        cost_rule: CostRule | None = None,
        is_tried: bool = False,
    ) -> Admit:
        """Return the question whether this attempt may run. ``is_tried``: one of this worker's own is settled."""
        cost = _NO_BOUND
        if cost_rule is not None:
            cost = cost_rule.fixed or cost_rule.bound(self.request, self.body_bytes)
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
            wait_until=self.wait_until,
            problem=None if self.problem is None else FaultReply.from_fault(self.problem),
            traceparent=traceparent,
            redelivered=self.is_redelivered or is_tried or None,
            max_cost=cost.amount,
            is_estimate=cost.is_estimate or None,
            cost_problem=cost.problem,
            grader=None if self.request is None else self.request.grader,
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
    wait_until: int | None = None
    named_id, body_sha256 = request_id_of(delivery), hashlib.sha256(body).hexdigest()
    request_id = sanitize_request_id(named_id)
    try:
        deadline = integer_header(headers, DEADLINE_HEADER)
        wait_until = None if deadline is None else integer_header(headers, WAIT_UNTIL_HEADER)
    except BadRequest as unreadable:
        problem = unreadable
    credential = call_credential(headers, named_id, target, body_sha256, deadline)
    try:
        if problem is None:
            version = integer_header(headers, PROTOCOL_HEADER)
            if version not in {None, PROTOCOL_VERSION}:
                raise BadRequest(f"{PROTOCOL_HEADER}: this fleet speaks version {PROTOCOL_VERSION}, not {version}")
            if request_id != named_id or headers.get(REQUEST_ID_HEADER, named_id) != named_id:
                raise BadRequest(f"{REQUEST_ID_HEADER}: 1 to 128 characters, none of them U+0000")
            if (size := len(body)) > MAX_BODY_BYTES:
                raise PayloadTooLarge(f"The body has {size} bytes; no session may send more than {MAX_BODY_BYTES}")
            request = parse_body(body, target, check)
    except Fault as fault:
        problem = truncate_message(fault)
    published_at, accepts = headers.get(PUBLISHED_AT_HEADER), headers.get(ACCEPT_HEADER)
    return IncomingRequest(
        credential=credential,
        request_id=request_id,
        deadline=deadline,
        wait_until=wait_until,
        published_at=published_at if isinstance(published_at, int) else None,
        body_sha256=body_sha256,
        body_bytes=len(body),
        request=request,
        problem=problem,
        accepts=_split_types(accepts) if isinstance(accepts, str) else frozenset(),
        is_redelivered=is_begun(delivery),
    )


def parse_body(body: bytes, target: str, check: Callable[[ApiRequest], None]) -> InvokeRequest | ApiRequest:
    """Parse the body of a request for this target; ``check`` judges one in a vendor's words. Raises `BadRequest`."""
    request: InvokeRequest | ApiRequest | None = read_api_request(body) if b'"api"' in body else None
    if request is None:
        parse_json(
            body
        )  # for what pydantic reads as something else: a name that stands twice, numbers beyond all bounds
        request = InvokeRequest.from_wire(body)
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
