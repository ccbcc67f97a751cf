"""What the headers of a request say of its calls: their key, their deadline, and when their client gives up."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request

from quintain.client.transport import DEFAULT_DEADLINE_SECONDS
from quintain.contracts.headers import DEADLINE_HEADER, REQUEST_ID_HEADER
from quintain.contracts.values import RequestId, require_possible_deadline
from quintain.errors import BadRequest, Expired
from quintain.rpc.server import integer_header
from quintain.timings import Clock
from quintain_gateway.endpoint import context_of

#: The common HTTP header for a request id.
IDEMPOTENCY_KEY_HEADER = "idempotency-key"

#: In which the official clients of OpenAI and Anthropic count the retries of a request.
RETRY_COUNT_HEADER = "x-stainless-retry-count"

#: The maximum length of an idempotency key: that of a request id, less the suffix for the choice.
MAX_KEY_LENGTH = 120


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The idempotency key of one HTTP request.

    If the client sent the key (``is_from_client``), its calls continue when the client disconnects, so that a retry
    gets their results. Calls under a generated key are cancelled.
    """

    text: str
    is_from_client: bool

    def request_ids(self, choice_count: int) -> list[str]:
        """Return the request id of each choice: the key itself, then the key with a number."""
        return [self.text, *(f"{self.text}.{choice}" for choice in range(1, choice_count))]

    def headers(self) -> dict[str, str]:
        """Return the response header with the request id."""
        return {"x-quintain-request-id": self.text}


def read_idempotency_key(request: Request) -> IdempotencyKey:
    """Return the client's idempotency key, or a new random one. Raises `BadRequest` if the client's is not valid."""
    value = request.headers.get(IDEMPOTENCY_KEY_HEADER)
    if value is None:
        return IdempotencyKey(secrets.token_urlsafe(16), is_from_client=False)
    if not 1 <= len(value) <= MAX_KEY_LENGTH or not value.isprintable():
        raise BadRequest(f"Idempotency-Key: 1 to {MAX_KEY_LENGTH} printable characters")
    return IdempotencyKey(value, is_from_client=True)


_REQUEST_ID_ADAPTER: TypeAdapter[str] = TypeAdapter(RequestId)


def read_request_id(request: Request) -> str | None:
    """Return the request id from ``x-quintain-request-id`` or ``idempotency-key``, or None if the client sent neither.

    Raises `BadRequest` if it is empty or too long.
    """
    value = request.headers.get(REQUEST_ID_HEADER, request.headers.get(IDEMPOTENCY_KEY_HEADER))
    if value is None:
        return None
    try:
        return _REQUEST_ID_ADAPTER.validate_python(value)
    except ValidationError:
        raise BadRequest(f"{REQUEST_ID_HEADER}: 1 to 128 characters") from None


def read_deadline_seconds(request: Request, clock: Clock) -> float:
    """Return the seconds until the deadline that the client set, or the default if it set none.

    The header holds milliseconds since the epoch, and ``clock`` is the time of the metadata service. Raises
    `BadRequest` if it is not a whole number or too far ahead, and `Expired` if the deadline has passed.
    """
    deadline = integer_header(request.headers, DEADLINE_HEADER)
    if deadline is None:
        return DEFAULT_DEADLINE_SECONDS
    remaining_seconds = clock.seconds_until(deadline)
    if remaining_seconds <= 0:
        raise Expired("The deadline had passed before the request arrived")
    require_possible_deadline(remaining_seconds)
    return remaining_seconds


#: In which the official clients say their own timeout, in seconds.
TIMEOUT_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")


def read_client_timeout(request: Request) -> float | None:
    """Return the seconds after which the client gives up; None where it says no positive number of them."""
    values = [value for name in TIMEOUT_HEADERS for value in request.headers.getlist(name)]
    return min(filter(None, (float(value) for value in values if _SECONDS.fullmatch(value))), default=None)


_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def retry_identity(request: Request, body: bytes) -> tuple[str, bool]:
    """Return what identifies a request to its own retries, and whether it is a retry.

    The identity covers the token, the path and the body. It is empty if the client does not count its retries, or has
    an idempotency key, which identifies the call better.
    """
    count = request.headers.get(RETRY_COUNT_HEADER)
    if count is None or not count.isdecimal() or IDEMPOTENCY_KEY_HEADER in request.headers:
        return "", False
    parts = (context_of(request).session_key.encode(), request.scope["raw_path"], body)
    return hashlib.sha256(b"\0".join(parts)).hexdigest(), bool(count.strip("0"))
