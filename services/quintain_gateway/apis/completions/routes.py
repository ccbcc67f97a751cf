"""OpenAI's completions API: ``POST /v1/completions``, for targets whose provider has that endpoint."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain_gateway.apis.completions.schemas import CompletionRequest, CompletionResponse
from quintain_gateway.apis.completions.wire import CompletionEncoder, parse_completion_request
from quintain_gateway.apis.openai.routes import API, FAULT_RESPONSES
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

COMPLETIONS_PATH = "/v1/completions"

OPERATIONS = (
    Operation(
        "POST",
        COMPLETIONS_PATH,
        "Let a target complete texts through OpenAI's completions API",
        token=SESSION_TOKEN,
        request_model=CompletionRequest,
        streams=True,
        responses={200: CompletionResponse, **FAULT_RESPONSES},
    ),
)


class CompletionEndpoints:
    """The endpoint of OpenAI's completions API, behind any path prefix."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        self.routes: list[Route] = [
            method_route(COMPLETIONS_PATH, {"POST": self.completions}, API.to_endpoint, any_prefix=True),
        ]

    async def completions(self, request: Request) -> Response:
        """``POST /v1/completions``: call a target once per choice and return the completion, whole or streamed."""
        client = await self._gateway.session_client(request)
        async with verify_token_on_body_error(client):
            key, deadline_seconds = read_idempotency_key(request), read_deadline_seconds(request, self._gateway.clock)
            body = await self._gateway.read_body(request, client)
            parsed = parse_completion_request(parse_json(body))
        dispatch_request = DispatchRequest(
            requests=parsed.requests, key=key, deadline_seconds=deadline_seconds, stream=parsed.stream
        )

        def encoder_of(call_id: str) -> CompletionEncoder:
            return CompletionEncoder(f"cmpl-{call_id}", parsed.model, include_usage=parsed.include_usage)

        return await respond(self._gateway, request, client, body, dispatch_request, encoder_of)
