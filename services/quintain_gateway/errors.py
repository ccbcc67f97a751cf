"""Errors that exist only over HTTP, and the error response of endpoints that have no format of their own.

The first line of an error's docstring is its message to the client if no other message is given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from quintain.contracts.invoke import FaultReply
from quintain.errors import BadRequest, Fault, Overloaded, ProviderError

JSON_MEDIA_TYPE, EVENT_STREAM_MEDIA_TYPE = "application/json", "text/event-stream"


#: When a request that was refused because too much runs at once may be sent again, in milliseconds.
BUSY_RETRY_MS = 1000


class NotFound(BadRequest):
    """Not found"""

    code, status = "not_found", 404


class RefusedInHttp(BadRequest):
    """The request is no HTTP that is answered here."""

    #: Headers of the response.
    headers: Mapping[str, str] = {}


class MethodNotAllowed(RefusedInHttp):
    """This path does not allow this method."""

    code, status = "method_not_allowed", 405

    @classmethod
    def at(cls, path: str, method: str, allowed: str) -> Self:
        """Return the fault of a method that is none of those ``allowed``."""
        fault = cls(f"{path} does not allow {method}; it allows {allowed}")
        fault.headers = {"Allow": allowed}
        return fault


class RequestTimeout(BadRequest):
    """The request did not arrive in time."""

    code, status = "request_timeout", 408


class UnsupportedEncoding(RefusedInHttp):
    """The body has a Content-Encoding; send it without one."""

    code, status = "unsupported_encoding", 415
    headers: Mapping[str, str] = {"Accept-Encoding": "identity"}


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
    """Return a fault with its own status and the error body of ``docs/protocol/http.md``."""
    return Response(FaultReply.from_fault(fault).to_wire(), status_code=fault.status, media_type=JSON_MEDIA_TYPE)


MODEL_NOT_FOUND, INSUFFICIENT_QUOTA = "model_not_found", "insufficient_quota"
CONTEXT_LENGTH_EXCEEDED, CONTENT_FILTER = "context_length_exceeded", "content_filter"

#: The status and code of faults that have others in these APIs. A client retries a 429, so an exhausted budget is 402.
_BY_CODE: Mapping[str, tuple[int, str]] = {
    "budget_exhausted": (402, INSUFFICIENT_QUOTA),
    "unknown_target": (404, MODEL_NOT_FOUND),
    "throttled": (429, "rate_limit_exceeded"),
}

#: The fault codes of calls that the worker has retried already, as often as their target allows.
_RETRIED_BY_WORKER = frozenset({"provider_error", "throttled"})

#: How long clients wait after throttling, in milliseconds, if the provider did not say.
DEFAULT_THROTTLE_MS = 5000

#: The statuses of a provider that refused the request itself, which the answer repeats; all others become 400.
_REQUEST_STATUSES = frozenset({400, 413, 422})

#: Codes and sentences of providers that mean the same, by OpenAI's code, which its clients look for.
_MEANINGS: Mapping[str, re.Pattern[str]] = {
    CONTEXT_LENGTH_EXCEEDED: re.compile(
        r"context_length_exceeded|prompt is too long|maximum context length|exceeds? (?:the|its) context window",
        re.IGNORECASE,
    ),
    CONTENT_FILTER: re.compile(
        r"content_filter|content_policy_violation|content filtering policy|content management policy", re.IGNORECASE
    ),
}

_QUOTA = re.compile(r"quota|billing|credit balance", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """An error as a client of a model provider's API expects it; ``parameter`` is in OpenAI's words."""

    status: int
    code: str
    message: str
    parameter: str | None = None
    retry_after_ms: int | None = None
    should_retry: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """The headers that tell the official clients whether to send the request again, and when."""
        headers = {"x-should-retry": "true" if self.should_retry else "false"}
        if self.retry_after_ms is None:
            return headers
        seconds = math.ceil(self.retry_after_ms / 1000)
        return {**headers, "retry-after": str(seconds), "retry-after-ms": str(self.retry_after_ms)}


def api_error_of(fault: Fault) -> ApiError:
    """Return the error of a fault.

    What the provider wrote goes through: its message, its code and its parameter. A provider that refused the target's
    credentials is not quoted, because its words are about them.
    """
    status, code = _BY_CODE.get(fault.code, (fault.status, fault.code))
    parameter = _parameter(fault)
    message = fault.message if parameter is None else fault.message.replace(fault.parameter or parameter, parameter, 1)
    provider_error = fault.provider_error
    if provider_error is not None and fault.code == "rejected":
        status, code = _rejection(provider_error)
        message = provider_error.message or message
    elif provider_error is not None and fault.code == "target_unavailable":
        status, code = _refusal(provider_error)
        message = provider_error.message or message
        if code == "upstream_auth":
            message = f"The provider refused the access of this target (HTTP {provider_error.status})"
    return ApiError(
        status=status,
        code=code,
        message=message,
        parameter=parameter,
        retry_after_ms=DEFAULT_THROTTLE_MS
        if fault.code == "throttled" and fault.retry_after_ms is None
        else fault.retry_after_ms,
        should_retry=_should_retry(fault),
    )


def _should_retry(fault: Fault) -> bool:
    """Return whether official clients should send the request again.

    They do so without an ``Idempotency-Key`` too, as another call: a call that may be charged is not sent again. Where
    a queue is full, the gateway knows only that it has not delivered the request, and a call that still runs under
    the client's own key is joined.
    """
    is_safe = fault.charged is False or fault.code in {Overloaded.code, StillRunning.code}
    return fault.retryable and is_safe and fault.code not in _RETRIED_BY_WORKER


def _rejection(provider_error: ProviderError) -> tuple[int, str]:
    """Return the status and code of a request that the provider judged wrong."""
    status = provider_error.status if provider_error.status in _REQUEST_STATUSES else 400
    words = f"{provider_error.code} {provider_error.message}"
    meaning = next((code for code, pattern in _MEANINGS.items() if pattern.search(words)), None)
    if meaning is not None:
        return 400, meaning
    # Some servers count their codes, or repeat the status as the code.
    named = [name for name in (provider_error.code, provider_error.type) if name is not None and not name.isdigit()]
    return status, named[0] if named else "invalid_request_error"


def _refusal(provider_error: ProviderError) -> tuple[int, str]:
    """Return the status and code of a provider that refused the credentials, the model or the quota."""
    words = f"{provider_error.code} {provider_error.type} {provider_error.message}"
    if provider_error.status == 404 or provider_error.code == MODEL_NOT_FOUND:
        return 404, MODEL_NOT_FOUND
    if provider_error.status in {401, 403} and not _QUOTA.search(words):
        return 502, "upstream_auth"
    return 402, INSUFFICIENT_QUOTA


def _parameter(fault: Fault) -> str | None:
    if fault.parameter is not None:
        # Some of the checks are of /invoke too, which writes indexes in brackets.
        return re.sub(r"\[(\d+)\]", r".\1", fault.parameter)
    if fault.provider_error is not None and fault.code == "rejected":
        return fault.provider_error.parameter
    return "model" if fault.code in {"unknown_target", "forbidden_target"} else None


#: OpenAI's error types by HTTP status.
_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}

#: Anthropic's error types by HTTP status.
_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

#: Anthropic's sentences for errors that have no type of their own there, by OpenAI's code: its clients look for them.
_ANTHROPIC_PHRASES: Mapping[str, str] = {
    CONTEXT_LENGTH_EXCEEDED: "prompt is too long",
    CONTENT_FILTER: "Output blocked by content filtering policy",
}


class OpenAIErrorObject(BaseModel):
    """An error in OpenAI's format. ``charged`` says whether the call counts against ``max_calls``.

    With ``chargeUnknown`` no ledger decided it: the same request under the same ``Idempotency-Key`` shows it.
    """

    message: str
    type: str
    param: str | None
    code: str
    charged: bool
    charge_unknown: bool | None = Field(default=None, alias="chargeUnknown")


class OpenAIErrorResponse(BaseModel):
    """An error response in OpenAI's format."""

    error: OpenAIErrorObject


class AnthropicErrorObject(BaseModel):
    """An error in Anthropic's format; ``charged`` and ``chargeUnknown`` as in OpenAI's."""

    type: str
    message: str
    code: str
    charged: bool
    charge_unknown: bool | None = Field(default=None, alias="chargeUnknown")


class AnthropicErrorResponse(BaseModel):
    """An error response in Anthropic's format."""

    type: str
    error: AnthropicErrorObject


def _charge(fault: Fault) -> dict[str, Any]:
    return {"charged": fault.charged is not False, **({"chargeUnknown": True} if fault.charged is None else {})}


def openai_error(fault: Fault) -> dict[str, Any]:
    """Return the body of an error in OpenAI's format."""
    api_error = api_error_of(fault)
    return {
        "error": {
            "message": api_error.message,
            "type": _type_of(api_error.status, _OPENAI_TYPES, "server_error"),
            "param": api_error.parameter,
            "code": api_error.code,
            **_charge(fault),
        }
    }


def anthropic_error(fault: Fault) -> dict[str, Any]:
    """Return the body of an error in Anthropic's format."""
    api_error = api_error_of(fault)
    message, phrase = api_error.message, _ANTHROPIC_PHRASES.get(api_error.code, "")
    error = {
        "type": _type_of(api_error.status, _ANTHROPIC_TYPES, "api_error"),
        "message": message if phrase.lower() in message.lower() else f"{phrase}: {message}",
        "code": api_error.code,
        **_charge(fault),
    }
    return {"type": "error", "error": error}


def _type_of(status: int, types: Mapping[int, str], of_servers: str) -> str:
    return types.get(status, "invalid_request_error" if status < 500 else of_servers)


def openai_response(fault: Fault) -> Response:
    """Return a fault as a response of OpenAI's API."""
    return _response(fault, openai_error(fault))


def anthropic_response(fault: Fault) -> Response:
    """Return a fault as a response of Anthropic's API."""
    return _response(fault, anthropic_error(fault))


def _response(fault: Fault, body: dict[str, Any]) -> Response:
    api_error = api_error_of(fault)
    return JSONResponse(body, status_code=api_error.status, headers=api_error.headers)
