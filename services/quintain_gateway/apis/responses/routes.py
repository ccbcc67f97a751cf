"""OpenAI's Responses API over the targets of a session: ``POST /v1/responses``, also streamed. Nothing is stored."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain_gateway.apis.openai.routes import API, FAULT_RESPONSES
from quintain_gateway.apis.responses.schemas import ResponseObject, ResponseRequest
from quintain_gateway.apis.responses.stream import ResponseEventEncoder
from quintain_gateway.apis.responses.wire import parse_response_request
from quintain_gateway.dispatch.dispatch import DispatchRequest
from quintain_gateway.dispatch.respond import respond
from quintain_gateway.http.endpoint import (
    FleetGateway,
    method_route,
    parse_json,
    verify_token_on_body_error,
)
from quintain_gateway.http.headers import read_deadline_seconds
from quintain_gateway.http.idempotency import read_idempotency_key
from quintain_gateway.http.openapi import SESSION_TOKEN, Operation

RESPONSES_PATH = "/v1/responses"

OPERATIONS = (
    Operation(
        "POST",
        RESPONSES_PATH,
        "Call a target through OpenAI's Responses API; nothing is stored",
        token=SESSION_TOKEN,
        request_model=ResponseRequest,
        streams=True,
        responses={200: ResponseObject, **FAULT_RESPONSES},
    ),
)


class ResponsesEndpoints:
    """The endpoint of OpenAI's Responses API, behind any path prefix."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        self.routes: list[Route] = [
            method_route(RESPONSES_PATH, {"POST": self.create}, API.to_endpoint, any_prefix=True),
        ]

    async def create(self, request: Request) -> Response:
        """``POST /v1/responses``: call a target and return its response, whole or streamed."""
        client = await self._gateway.session_client(request)
        async with verify_token_on_body_error(client):
            key, deadline_seconds = read_idempotency_key(request), read_deadline_seconds(request, self._gateway.clock)
            body = await self._gateway.read_body(request, client)
            parsed = parse_response_request(parse_json(body))
        dispatch_request = DispatchRequest(
            requests=[parsed.request], key=key, deadline_seconds=deadline_seconds, stream=parsed.stream
        )

        def encoder_of(call_id: str) -> ResponseEventEncoder:
            return ResponseEventEncoder(call_id, parsed.request.target or "", parsed.echoed)

        return await respond(self._gateway, request, client, body, dispatch_request, encoder_of)
