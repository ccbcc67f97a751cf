"""OpenAI's API over the targets of a session: ``POST /v1/chat/completions``, also streamed.

``model`` is the name of a target. Each choice is one call of the budget; either all choices of a request are reserved
or none. ``Idempotency-Key`` is the request id: a retry under the same key is the same call, charged once.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.errors import Fault
from quintain_gateway.apis.openai.schemas import ChatCompletionRequest, ChatCompletionResponse, OpenAIErrorResponse
from quintain_gateway.apis.openai.stream import ChatCompletionEncoder
from quintain_gateway.apis.openai.wire import parse_chat_request, write_error
from quintain_gateway.dispatch.dispatch import DispatchRequest
from quintain_gateway.dispatch.respond import respond
from quintain_gateway.http.endpoint import (
    Api,
    FleetGateway,
    method_route,
    parse_json,
    verify_token_on_body_error,
)
from quintain_gateway.http.headers import read_deadline_seconds
from quintain_gateway.http.idempotency import read_idempotency_key
from quintain_gateway.http.openapi import SESSION_TOKEN, Operation, fault_responses

CHAT_COMPLETIONS_PATH = "/v1/chat/completions"

_COMMON_FAULT_STATUSES = (401, 405, 500, 503)
_CALL_FAULT_STATUSES = (400, 402, 403, 404, 408, 409, 410, 413, 422, 429, 499, 502, 504)

#: The error responses of an operation that makes calls, in OpenAI's format.
FAULT_RESPONSES = {
    **fault_responses(*_CALL_FAULT_STATUSES, *_COMMON_FAULT_STATUSES, body=OpenAIErrorResponse),
    **fault_responses(431),
}

OPERATIONS = (
    Operation(
        "POST",
        CHAT_COMPLETIONS_PATH,
        "Call a target through OpenAI's chat completions API",
        token=SESSION_TOKEN,
        request_model=ChatCompletionRequest,
        streams=True,
        responses={200: ChatCompletionResponse, **FAULT_RESPONSES},
    ),
)


def error_response(fault: Fault) -> Response:
    """Return a fault as an error response in OpenAI's format."""
    status, body, headers = write_error(fault)
    return JSONResponse(body, status_code=status, headers=headers)


API = Api(error_response=error_response)


class OpenAIEndpoints:
    """The endpoint of OpenAI's chat completions API, behind any path prefix."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        self.routes: list[Route] = [
            method_route(CHAT_COMPLETIONS_PATH, {"POST": self.chat_completions}, API.to_endpoint, any_prefix=True),
        ]

    async def chat_completions(self, request: Request) -> Response:
        """``POST /v1/chat/completions``: call a target once per choice and return the completion, whole or streamed."""
        client = await self._gateway.session_client(request)
        async with verify_token_on_body_error(client):
            key, deadline_seconds = read_idempotency_key(request), read_deadline_seconds(request, self._gateway.clock)
            body = await self._gateway.read_body(request, client)
            parsed = parse_chat_request(parse_json(body))
        dispatch_request = DispatchRequest(
            requests=[parsed.request] * parsed.choice_count,
            key=key,
            deadline_seconds=deadline_seconds,
            stream=parsed.stream,
        )
        model = parsed.request.target or ""

        def encoder_of(call_id: str) -> ChatCompletionEncoder:
            return ChatCompletionEncoder(f"chatcmpl-{call_id}", model, include_usage=parsed.include_usage)

        return await respond(self._gateway, request, client, body, dispatch_request, encoder_of)
