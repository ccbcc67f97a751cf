"""Parses the request headers of ``protocol.md`` §2: the request id (idempotency key) and the deadline. No I/O."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request

from quintain.client.transport import DEFAULT_DEADLINE_SECONDS
from quintain.clock import Clock
from quintain.contracts.values import RequestId
from quintain.errors import BadRequest, Expired
from quintain.routes import DEADLINE_HEADER, REQUEST_ID_HEADER
from quintain.rpc.server import integer_header

#: The common HTTP header for a request id.
IDEMPOTENCY_KEY_HEADER = "idempotency-key"

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
    `BadRequest` if it is not a whole number, and `Expired` if the deadline has passed.
    """
    deadline = integer_header(request.headers, DEADLINE_HEADER)
    if deadline is None:
        return DEFAULT_DEADLINE_SECONDS
    remaining_seconds = clock.seconds_until(deadline)
    if remaining_seconds <= 0:
        raise Expired("The deadline had passed before the request arrived")
    return remaining_seconds
