"""Errors that exist only over HTTP, and the error response of endpoints that have no format of their own."""

from __future__ import annotations

from starlette.responses import Response

from quintain.contracts.invoke import FaultReply
from quintain.errors import BadRequest, Fault

JSON_MEDIA_TYPE, EVENT_STREAM_MEDIA_TYPE = "application/json", "text/event-stream"


class NotFound(BadRequest):
    """Not found"""

    code, status = "not_found", 404


class MethodNotAllowed(BadRequest):
    """This path does not know this method."""

    code, status = "method_not_allowed", 405


class RequestTimeout(BadRequest):
    """The request did not arrive in time."""

    code, status = "request_timeout", 408


class HeadersTooLarge(BadRequest):
    """The request's line and headers are larger than the limit."""

    code, status = "head_too_large", 431


class TooManyConnections(BadRequest):
    """This gateway holds as many connections as it may; try again later."""

    code, status = "overloaded", 503
    always_retryable = True


class GatewayStopping(BadRequest):
    """The gateway is stopping."""

    code, status = "overloaded", 503
    always_retryable = True


def fault_response(fault: Fault) -> Response:
    """A fault under its own status, as ``protocol.md`` §5 writes it."""
    return Response(FaultReply.from_fault(fault).to_wire(), status_code=fault.status, media_type=JSON_MEDIA_TYPE)
