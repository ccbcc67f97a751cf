"""OpenAI's and Anthropic's APIs over the targets of a session, behind any path prefix.

``model`` is the name of a target. Each choice is one call of the budget; either all choices of a request are reserved
or none. ``Idempotency-Key`` is the request id: a retry under the same key is the same call, charged once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain.contracts.api_request import ApiName
from quintain_gateway.apis.model_bodies import BODIES, parse_body
from quintain_gateway.dispatch.dispatch import DispatchRequest
from quintain_gateway.dispatch.model_answers import AnswerEncoder
from quintain_gateway.dispatch.respond import respond
from quintain_gateway.http.endpoint import Api, FleetGateway, bearer_token, method_route, verify_token_on_body_error
from quintain_gateway.http.headers import read_deadline_seconds
from quintain_gateway.http.idempotency import read_idempotency_key
from quintain_gateway.http.model_errors import ANTHROPIC, OPENAI, AnthropicErrorResponse, OpenAIErrorResponse
from quintain_gateway.http.openapi import SESSION_TOKEN, Operation, fault_responses

_FAULT_STATUSES = (400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 422, 429, 499, 500, 502, 503, 504)


class ModelAnswer(BaseModel):
    """The provider's own answer."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    model: str


class ModelApi(NamedTuple):
    """One endpoint of a vendor's API."""

    name: ApiName
    path: str
    summary: str
    api: Api = OPENAI
    error: type[BaseModel] = OpenAIErrorResponse

    def operation(self) -> Operation:
        """Return its part of the OpenAPI document."""
        return Operation(
            "POST",
            self.path,
            self.summary,
            token=SESSION_TOKEN,
            request_model=BODIES[self.name],
            streams=self.name != "embeddings",
            responses={200: ModelAnswer, **fault_responses(*_FAULT_STATUSES, body=self.error), **fault_responses(431)},
        )


MODEL_APIS = (
    ModelApi("chat", "/v1/chat/completions", "Call a target through OpenAI's chat completions API"),
    ModelApi("responses", "/v1/responses", "Call a target through OpenAI's Responses API; nothing is stored"),
    ModelApi("completions", "/v1/completions", "Let a target complete texts through OpenAI's completions API"),
    ModelApi("embeddings", "/v1/embeddings", "Let a target embed texts through OpenAI's embeddings API"),
    ModelApi(
        "messages",
        "/v1/messages",
        "Call a target through Anthropic's messages API; the token may be sent as x-api-key",
        ANTHROPIC,
        AnthropicErrorResponse,
    ),
)

OPERATIONS = tuple(model_api.operation() for model_api in MODEL_APIS)

MESSAGES_PATH = "/v1/messages"


def read_anthropic_token(request: Request) -> str:
    """Return the session token from ``x-api-key`` or ``Authorization``. Raises `Unauthorized` if there is none."""
    return request.headers.get("x-api-key") or bearer_token(request)


class ModelApiEndpoints:
    """The endpoints of both vendors' APIs."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        self.routes: list[Route] = [
            method_route(each.path, {"POST": self._handler(each)}, each.api.to_endpoint, any_prefix=True)
            for each in MODEL_APIS
        ]

    def _handler(self, model_api: ModelApi) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            return await self._answer(model_api.name, request)

        return handle

    async def _answer(self, api: ApiName, request: Request) -> Response:
        """Call the target once for each choice, and return its answer, whole or streamed."""
        read_token = read_anthropic_token if api == "messages" else bearer_token
        client = await self._gateway.session_client(request, read_token)
        async with verify_token_on_body_error(client):
            key, deadline_seconds = read_idempotency_key(request), read_deadline_seconds(request, self._gateway.clock)
            body = await self._gateway.read_body(request, client)
            parsed = parse_body(api, body, request.headers)
        calls = DispatchRequest(
            requests=parsed.requests, key=key, deadline_seconds=deadline_seconds, stream=parsed.stream
        )

        def encoder_of(call_id: str) -> AnswerEncoder:
            return AnswerEncoder(api, call_id, parsed.target, parsed.include_usage)

        return await respond(self._gateway, request, client, body, calls, encoder_of)
