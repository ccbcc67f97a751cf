"""The session's targets as models: ``/v1/models``, in Anthropic's shape for its clients and in OpenAI's for all others.

Both have the same paths; Anthropic's clients say who they are with the header ``anthropic-version``.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain_gateway import anthropic, openai
from quintain_gateway.anthropic_wire import write_anthropic_model, write_anthropic_models
from quintain_gateway.door import Door, bearer
from quintain_gateway.methods import Answer, resource
from quintain_gateway.openai_body import Model, ModelList, OpenAIError
from quintain_gateway.openai_wire import write_model, write_models
from quintain_gateway.operation import SESSION_TOKEN, Operation, faults
from quintain_gateway.refusals import NotFound

MODELS, MODEL = "/v1/models", "/v1/models/{model}"

#: Every client of Anthropic's sends it, and nobody else does.
VERSION_HEADER = "anthropic-version"

_ALWAYS = (401, 405, 500, 503)

OPERATIONS = (
    Operation(
        "GET", MODELS, "The session's targets, as OpenAI's models; with anthropic-version as Anthropic's",
        token=SESSION_TOKEN, answers={200: ModelList, **faults(*_ALWAYS, body=OpenAIError), **faults(431)},
    ),
    Operation(
        "GET", MODEL, "One target as a model of OpenAI's; with anthropic-version as one of Anthropic's",
        token=SESSION_TOKEN, answers={200: Model, **faults(404, *_ALWAYS, body=OpenAIError), **faults(431)},
    ),
)  # fmt: skip


def endpoint(answer: Answer) -> Answer:
    """An endpoint that refuses in the words of whoever asks."""
    for_openai, for_anthropic = openai.API.endpoint(answer), anthropic.API.endpoint(answer)

    async def respond(request: Request) -> Response:
        return await (for_anthropic if is_anthropics(request) else for_openai)(request)

    return respond


class Models:
    """The endpoints, behind any prefix."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.routes: list[Route] = [
            resource(MODELS, {"GET": self.all}, endpoint, anywhere=True),
            resource(MODEL, {"GET": self.one}, endpoint, anywhere=True),
        ]

    async def all(self, request: Request) -> Response:
        """``GET /v1/models``"""
        write = write_anthropic_models if is_anthropics(request) else write_models
        return JSONResponse(write(await self._targets(request)))

    async def one(self, request: Request) -> Response:
        """``GET /v1/models/{model}``"""
        targets = await self._targets(request)
        name = request.path_params["model"]
        if name not in targets:
            raise NotFound(f"There is no such target. Available: {', '.join(targets)}")
        write = write_anthropic_model if is_anthropics(request) else write_model
        return JSONResponse(write(name))

    async def _targets(self, request: Request) -> list[str]:
        client = await self._door.client(request, anthropic.token_of if is_anthropics(request) else bearer)
        return (await client.get_info()).available_targets


def is_anthropics(request: Request) -> bool:
    """Whether a client of Anthropic's asks."""
    return VERSION_HEADER in request.headers
