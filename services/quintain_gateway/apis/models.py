"""The targets of a session as models: ``/v1/models`` in OpenAI's format, or in Anthropic's for its clients.

Both APIs use the same paths. Anthropic's clients send the header ``anthropic-version``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.errors import UnknownTarget
from quintain_gateway.apis.model_apis import MESSAGES_PATH, read_anthropic_token
from quintain_gateway.http.endpoint import FleetGateway, Handler, bearer_token, method_route
from quintain_gateway.http.model_errors import ANTHROPIC, OPENAI, OpenAIErrorResponse
from quintain_gateway.http.openapi import SESSION_TOKEN, Operation, fault_responses

MODELS_PATH, MODEL_PATH = "/v1/models", "/v1/models/{model}"

#: A header that every client of Anthropic's API sends, and no client of OpenAI's.
ANTHROPIC_VERSION_HEADER = "anthropic-version"


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


def write_models(targets: Sequence[str]) -> dict[str, Any]:
    """Return OpenAI's list of models for these targets."""
    return {"object": "list", "data": [write_model(target) for target in targets]}


def write_model(target: str) -> dict[str, Any]:
    """Return OpenAI's model object for one target."""
    return {"id": target, "object": "model", "created": 0, "owned_by": "quintain"}


def write_anthropic_models(targets: Sequence[str]) -> dict[str, Any]:
    """Return Anthropic's list of models for these targets, as a single page."""
    first, last = (targets[0], targets[-1]) if targets else (None, None)
    data = [write_anthropic_model(target) for target in targets]
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def write_anthropic_model(target: str) -> dict[str, Any]:
    """Return Anthropic's model object for one target."""
    return {"type": "model", "id": target, "display_name": target, "created_at": "1970-01-01T00:00:00Z"}


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
)


def to_endpoint(handler: Handler) -> Handler:
    """Wrap a handler so that errors are written in the format of the client's API, OpenAI's or Anthropic's."""
    for_openai, for_anthropic = OPENAI.to_endpoint(handler), ANTHROPIC.to_endpoint(handler)

    async def respond(request: Request) -> Response:
        return await (for_anthropic if is_anthropic_client(request) else for_openai)(request)

    return respond


class ModelEndpoints:
    """The endpoints that list a session's targets as models, behind any path prefix."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        self.routes: list[Route] = [
            method_route(MODELS_PATH, {"GET": self.list_models}, to_endpoint, any_prefix=True),
            method_route(MODEL_PATH, {"GET": self.get_model}, to_endpoint, any_prefix=True),
        ]

    async def list_models(self, request: Request) -> Response:
        """``GET /v1/models``: list the targets that the session may call."""
        write = write_anthropic_models if is_anthropic_client(request) else write_models
        return JSONResponse(write(await self._targets(request)))

    async def get_model(self, request: Request) -> Response:
        """``GET /v1/models/{model}``: return one target. Raises `UnknownTarget` if the session may not call it."""
        targets = await self._targets(request)
        name = request.path_params["model"]
        if name not in targets:
            raise UnknownTarget(f"There is no such target. Available: {', '.join(targets)}")
        write = write_anthropic_model if is_anthropic_client(request) else write_model
        return JSONResponse(write(name))

    async def _targets(self, request: Request) -> list[str]:
        client = await self._gateway.session_client(request, read_any_token)
        return (await client.get_info()).available_targets


def is_anthropic_client(request: Request) -> bool:
    """Whether the request is one of Anthropic's API: by its header, or below the path that only this API has."""
    return ANTHROPIC_VERSION_HEADER in request.headers or MESSAGES_PATH in request.scope["path"]


def read_any_token(request: Request) -> str:
    """Return the session token as the client's API sends it. Raises `Unauthorized` if there is none."""
    return (read_anthropic_token if is_anthropic_client(request) else bearer_token)(request)
