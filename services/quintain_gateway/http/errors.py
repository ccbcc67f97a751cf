"""Errors that exist only over HTTP, and the error response of endpoints that have no format of their own.

The first line of an error's docstring is its message to the client if no other message is given.
"""

from __future__ import annotations

from starlette.responses import Response

from quintain.contracts.invoke import FaultReply
from quintain.errors import BadRequest, Fault

JSON_MEDIA_TYPE, EVENT_STREAM_MEDIA_TYPE = "application/json", "text/event-stream"


class NotFound(BadRequest):
    """Not found"""

    code, status = "not_found", 404


class MethodNotAllowed(BadRequest):
    """This path does not allow this method."""

    code, status = "method_not_allowed", 405


class RequestTimeout(BadRequest):
    """The request did not arrive in time."""

    code, status = "request_timeout", 408


class HeadersTooLarge(BadRequest):
    """The request line and headers are larger than the limit."""

    code, status = "head_too_large", 431


class TooManyConnections(BadRequest):
    """The gateway has as many connections as it allows; try again later."""

    code, status = "overloaded", 503
    always_retryable = True
    always_unknown = True


class GatewayStopping(BadRequest):
    """The gateway is stopping."""

    code, status = "overloaded", 503
    always_retryable = True
    always_unknown = True


class SessionBusy(BadRequest):
    """This session makes as many requests at once as it may; try again later."""

    code, status = "overloaded", 503
    always_retryable = True


class LargeBodiesBusy(BadRequest):
    """The gateway has as many large requests as its memory allows; try again later."""

    code, status = "overloaded", 503
    always_retryable = True


class MisdirectedRequest(BadRequest):
    """The Host of this request is no name of this gateway: use its own, or start it with --allowed-host NAME."""

    code, status = "misdirected_request", 421


class StillRunning(BadRequest):
    """The answer takes longer than the gateway holds a response: repeat the request with the same Idempotency-Key."""

    code, status = "still_running", 504
    always_retryable = True
    always_charged = True


def fault_response(fault: Fault) -> Response:
    """Return a fault with its own status and the error body of ``protocol.md`` §5."""
    return Response(FaultReply.from_fault(fault).to_wire(), status_code=fault.status, media_type=JSON_MEDIA_TYPE)
