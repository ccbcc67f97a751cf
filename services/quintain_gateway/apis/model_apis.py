"""OpenAI's and Anthropic's APIs over the targets of a session, behind any path prefix.

``model`` is the name of a target. Each choice is one call of the budget; either all choices of a request are reserved
or none. ``Idempotency-Key`` is the request id: a retry under the same key is the same call, charged once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.contracts.api_request import ApiName
from quintain.contracts.headers import DEADLINE_HEADER
from quintain.errors import BadRequest, UnknownTarget
from quintain_gateway.answer_encoder import AnswerEncoder
from quintain_gateway.auth import FleetGateway, model_token, verify_token_on_body_error
from quintain_gateway.bodies import BODIES, parse_body
from quintain_gateway.calls import (
    CallGroup,
    answered_seconds,
    read_client_timeout,
    read_deadline_seconds,
    read_idempotency_key,
    retry_identity,
)
from quintain_gateway.endpoint import (
    ANTHROPIC,
    MESSAGES_PATH,
    MODEL_API_PATH,
    OPENAI,
    UNMATCHED_ROUTE,
    AnyMethodRoute,
    Api,
    Handler,
    cancel_on_disconnect,
    context_of,
    is_anthropic,
    method_route,
)
from quintain_gateway.errors import AnthropicErrorResponse, NotFound, OpenAIErrorResponse
from quintain_gateway.openapi import SESSION_TOKEN, Operation, fault_responses
from quintain_gateway.response_writer import ResponseWriter

MODELS_PATH, MODEL_PATH = "/v1/models", "/v1/models/{model}"


_FAULT_STATUSES = (400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 415, 422, 429, 499, 500, 502, 503, 504)


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
        MESSAGES_PATH,
        "Call a target through Anthropic's messages API; the token may be sent as x-api-key",
        ANTHROPIC,
        AnthropicErrorResponse,
    ),
)


class OpenAIModel(BaseModel):
    """A target that the session may call, as a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OpenAIModelList(BaseModel):
    """The targets that the session may call, as models."""

    object: Literal["list"]
    data: list[OpenAIModel]


_COMMON_FAULT_STATUSES = (401, 405, 500, 503)

OPERATIONS = (
    Operation(
        "GET",
        MODELS_PATH,
        "List the session's targets in OpenAI's format, or in Anthropic's with the header anthropic-version",
        token=SESSION_TOKEN,
        responses={
            200: OpenAIModelList,
            **fault_responses(*_COMMON_FAULT_STATUSES, body=OpenAIErrorResponse),
            **fault_responses(431),
        },
    ),
    Operation(
        "GET",
        MODEL_PATH,
        "Show one target in OpenAI's format, or in Anthropic's with the header anthropic-version",
        token=SESSION_TOKEN,
        responses={
            200: OpenAIModel,
            **fault_responses(404, *_COMMON_FAULT_STATUSES, body=OpenAIErrorResponse),
            **fault_responses(431),
        },
    ),
    *(model_api.operation() for model_api in MODEL_APIS),
)


def to_endpoint(handler: Handler) -> Handler:
    """Wrap a handler so that errors are written in the format of the client's API, OpenAI's or Anthropic's."""
    for_openai, for_anthropic = OPENAI.to_endpoint(handler), ANTHROPIC.to_endpoint(handler)

    async def respond(request: Request) -> Response:
        return await (for_anthropic if is_anthropic(request.scope) else for_openai)(request)

    return respond


class ModelEndpoints:
    """The endpoints of both vendors' APIs, behind any path prefix."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        unmatched = AnyMethodRoute("/v1/{path:path}", to_endpoint(self.not_found))
        unmatched.path_regex = MODEL_API_PATH
        self.routes: list[Route] = [
            method_route(MODELS_PATH, {"GET": self.list_models}, to_endpoint, any_prefix=True),
            method_route(MODEL_PATH, {"GET": self.get_model}, to_endpoint, any_prefix=True),
            *(
                method_route(path, {"POST": partial(self.answer, name)}, api.to_endpoint, any_prefix=True)
                for name, path, _, api, _ in MODEL_APIS
            ),
            unmatched,
        ]

    async def list_models(self, request: Request) -> Response:
        """``GET /v1/models``: list the targets that the session may call, on a single page."""
        targets = await self._targets(request)
        if not is_anthropic(request.scope):
            return JSONResponse({"object": "list", "data": [_openai_model(target) for target in targets]})
        first, last = (targets[0], targets[-1]) if targets else (None, None)
        data = [_anthropic_model(target) for target in targets]
        return JSONResponse({"data": data, "has_more": False, "first_id": first, "last_id": last})

    async def get_model(self, request: Request) -> Response:
        """``GET /v1/models/{model}``: return one target. Raises `UnknownTarget` if the session may not call it."""
        targets = await self._targets(request)
        name = request.path_params["model"]
        if name not in targets:
            raise UnknownTarget(f"There is no such target. Available: {', '.join(targets)}")
        return JSONResponse((_anthropic_model if is_anthropic(request.scope) else _openai_model)(name))

    async def _targets(self, request: Request) -> list[str]:
        client = await self._gateway.session_client(request, model_token)
        return (await client.get_info()).available_targets

    async def answer(self, api: ApiName, request: Request) -> Response:
        """Call the target once for each choice, and return its answer, whole or streamed.

        A retry after a lost connection joins the calls of the request that it repeats. The calls are cancelled if the
        client disconnects. Raises the `Fault` of a call that fails before the status is sent.
        """
        client = await self._gateway.session_client(request, model_token)
        async with verify_token_on_body_error(client):
            key, deadline_seconds = read_idempotency_key(request), read_deadline_seconds(request, self._gateway.clock)
            timeout_seconds = read_client_timeout(request)
            body = await self._gateway.bodies.read(request, client)
            parsed = parse_body(api, body, request.headers)
        limits, window = self._gateway.limits, self._gateway.retry_window
        if not (parsed.stream or limits.early_status or key.is_from_client):
            # The deadline ends the calls in the fleet when the client's patience with a held status line does.
            if deadline_seconds > limits.answer_seconds and DEADLINE_HEADER in request.headers:
                raise BadRequest(
                    f"{DEADLINE_HEADER}: an answer is held for {limits.answer_seconds:.0f} s here; "
                    "for a later deadline send an Idempotency-Key, or ask for a stream"
                )
            deadline_seconds = min(deadline_seconds, limits.answer_seconds)
        identity, is_retry = retry_identity(request, body)
        calls = window.take(identity) if is_retry else None
        if calls is None:
            calls = CallGroup(client, parsed.requests, key, deadline_seconds, timeout_seconds, stream=parsed.stream)
        if identity:
            calls.keep_for_retry(window, identity)
        context_of(request).request_id = calls.key.text
        encoder = AnswerEncoder(api, calls.key.text, parsed.target, parsed.include_usage, parsed.ignored)
        keep_alive_seconds = min(limits.keep_alive_seconds, answered_seconds(timeout_seconds, 0.3))
        limits = replace(limits, keep_alive_seconds=keep_alive_seconds)
        writer = ResponseWriter(encoder, calls, context_of(request), limits)
        return await cancel_on_disconnect(
            request, writer.streaming_response() if parsed.stream else writer.json_response()
        )

    async def not_found(self, request: Request) -> Response:
        """Answer 404 for a path that no API has. Raises `Unauthorized` before that if the token is not valid."""
        context_of(request).route = UNMATCHED_ROUTE
        client = await self._gateway.session_client(request, model_token)
        await client.get_info()
        raise NotFound(f"There is no {request.method} of this path; GET /openapi.json lists what there is")


def _openai_model(target: str) -> dict[str, Any]:
    return {"id": target, "object": "model", "created": 0, "owned_by": "quintain"}


def _anthropic_model(target: str) -> dict[str, Any]:
    return {"type": "model", "id": target, "display_name": target, "created_at": "1970-01-01T00:00:00Z"}
