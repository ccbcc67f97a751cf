"""Anthropic's API over the targets of a session: ``POST /v1/messages``, also streamed.

``model`` is the name of a target.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.errors import Fault
from quintain_gateway.apis.anthropic.schemas import (
    AnthropicErrorResponse,
    AnthropicMessageRequest,
    AnthropicMessageResponse,
)
from quintain_gateway.apis.anthropic.stream import AnthropicMessageEncoder
from quintain_gateway.apis.anthropic.wire import parse_message_request, write_error
from quintain_gateway.dispatch.dispatch import DispatchRequest
from quintain_gateway.dispatch.respond import respond
from quintain_gateway.http.endpoint import (
    Api,
    FleetGateway,
    bearer_token,
    method_route,
    parse_json,
    verify_token_on_body_error,
)
from quintain_gateway.http.headers import read_deadline_seconds
from quintain_gateway.http.idempotency import read_idempotency_key
from quintain_gateway.http.openapi import SESSION_TOKEN, Operation, fault_responses

MESSAGES_PATH = "/v1/messages"

_FAULT_STATUSES = (400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 422, 429, 499, 500, 502, 503, 504)

OPERATIONS = (
    Operation(
        "POST",
        MESSAGES_PATH,
        "Call a target through Anthropic's messages API; the token may be sent as x-api-key",
        token=SESSION_TOKEN,
        request_model=AnthropicMessageRequest,
        streams=True,
        responses={
            200: AnthropicMessageResponse,
            **fault_responses(*_FAULT_STATUSES, body=AnthropicErrorResponse),
            **fault_responses(431),
        },
    ),
)


def error_response(fault: Fault) -> Response:
    """Return a fault as an error response in Anthropic's format."""
    status, body, headers = write_error(fault)
    return JSONResponse(body, status_code=status, headers=headers)


API = Api(error_response=error_response, request_id_header="request-id")


class AnthropicEndpoints:
    """The endpoint of Anthropic's messages API, behind any path prefix; the token may be sent as ``x-api-key``."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        self.routes: list[Route] = [
            method_route(MESSAGES_PATH, {"POST": self.messages}, API.to_endpoint, any_prefix=True)
        ]

    async def messages(self, request: Request) -> Response:
        """``POST /v1/messages``: call a target and return its message, streamed if requested."""
        client = await self._gateway.session_client(request, read_token)
        async with verify_token_on_body_error(client):
            key, deadline_seconds = read_idempotency_key(request), read_deadline_seconds(request, self._gateway.clock)
            body = await self._gateway.read_body(request, client)
            parsed = parse_message_request(parse_json(body))
        dispatch_request = DispatchRequest(
            requests=[parsed.request], key=key, deadline_seconds=deadline_seconds, stream=parsed.stream
        )

        def encoder_of(call_id: str) -> AnthropicMessageEncoder:
            return AnthropicMessageEncoder(f"msg_{call_id}", parsed.request.target or "")

        return await respond(self._gateway, request, client, body, dispatch_request, encoder_of)


def read_token(request: Request) -> str:
    """Return the session token from ``x-api-key`` or ``Authorization``. Raises `Unauthorized` if there is none."""
    return request.headers.get("x-api-key") or bearer_token(request)
