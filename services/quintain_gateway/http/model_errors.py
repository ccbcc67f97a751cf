"""Faults as errors of OpenAI's and Anthropic's APIs. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from quintain.errors import Fault
from quintain_gateway.http.api_errors import CONTENT_FILTER, CONTEXT_LENGTH_EXCEEDED, api_error_of
from quintain_gateway.http.endpoint import Api

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


def _response(body_of: Callable[[Fault], dict[str, Any]], fault: Fault) -> Response:
    api_error = api_error_of(fault)
    return JSONResponse(body_of(fault), status_code=api_error.status, headers=api_error.headers)


OPENAI = Api(error_response=partial(_response, openai_error))
ANTHROPIC = Api(error_response=partial(_response, anthropic_error), request_id_header="request-id")
