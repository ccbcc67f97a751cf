"""What a request says beside its body, in headers (``protocol.md`` §2): its idempotency key, its deadline. Pure."""

from __future__ import annotations

import math

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request

from quintain.client.transport import DEFAULT_DEADLINE_SECONDS
from quintain.clock import Clock
from quintain.contracts.names import RequestId
from quintain.errors import BadRequest, Expired
from quintain.routes import DEADLINE_HEADER, REQUEST_ID_HEADER

#: HTTP's own name for a request id.
KEY_HEADER = "idempotency-key"

_REQUEST_ID: TypeAdapter[str] = TypeAdapter(RequestId)


def request_id_of(request: Request) -> str | None:
    """The call's request id, where the client names it, in our header or HTTP's own. Raises `BadRequest`."""
    offered = request.headers.get(REQUEST_ID_HEADER, request.headers.get(KEY_HEADER))
    if offered is None:
        return None
    try:
        return _REQUEST_ID.validate_python(offered)
    except ValidationError:
        raise BadRequest(f"{REQUEST_ID_HEADER}: 1 to 128 characters") from None


def deadline_seconds_of(request: Request, clock: Clock) -> float:
    """Seconds until the call's deadline; the usual ones where none is named. Raises `BadRequest`, `Expired`."""
    offered = request.headers.get(DEADLINE_HEADER)
    if offered is None:
        return DEFAULT_DEADLINE_SECONDS
    try:
        left = clock.seconds_until(float(offered))
    except ValueError:
        left = math.nan
    if not math.isfinite(left):
        raise BadRequest(f"{DEADLINE_HEADER}: milliseconds since the epoch")
    if left <= 0:
        raise Expired("The deadline had passed before the request came")
    return left
