"""OpenAI's embeddings API: ``POST /v1/embeddings``, for targets whose provider has that endpoint."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain_gateway.apis.embeddings.schemas import EmbeddingRequest, EmbeddingResponse
from quintain_gateway.apis.embeddings.wire import parse_embedding_request, write_embeddings
from quintain_gateway.apis.openai.routes import API, FAULT_RESPONSES
from quintain_gateway.dispatch.response import result_headers
from quintain_gateway.http.endpoint import (
    FleetGateway,
    cancel_on_disconnect,
    method_route,
    parse_json,
    verify_token_on_body_error,
)
from quintain_gateway.http.headers import read_deadline_seconds
from quintain_gateway.http.idempotency import read_idempotency_key
from quintain_gateway.http.openapi import SESSION_TOKEN, Operation

EMBEDDINGS_PATH = "/v1/embeddings"

OPERATIONS = (
    Operation(
        "POST",
        EMBEDDINGS_PATH,
        "Let a target embed texts through OpenAI's embeddings API",
        token=SESSION_TOKEN,
        request_model=EmbeddingRequest,
        responses={200: EmbeddingResponse, **FAULT_RESPONSES},
    ),
)


class EmbeddingEndpoints:
    """The endpoint of OpenAI's embeddings API, behind any path prefix."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        self.routes: list[Route] = [
            method_route(EMBEDDINGS_PATH, {"POST": self.embeddings}, API.to_endpoint, any_prefix=True),
        ]

    async def embeddings(self, request: Request) -> Response:
        """``POST /v1/embeddings``: call a target once and return the vectors of all texts."""
        client = await self._gateway.session_client(request)
        async with verify_token_on_body_error(client):
            key, deadline_seconds = read_idempotency_key(request), read_deadline_seconds(request, self._gateway.clock)
            invoke_request = parse_embedding_request(parse_json(await self._gateway.read_body(request, client)))
        call = client.send(
            invoke_request,
            request_id=key.text,
            deadline_seconds=deadline_seconds,
            cancel_with_task=not key.is_from_client,
        )
        result = await cancel_on_disconnect(request, call)
        headers = {**key.headers(), **result_headers([result])}
        return JSONResponse(write_embeddings(invoke_request, result), headers=headers)
