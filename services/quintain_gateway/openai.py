"""OpenAI's API over the session's targets: ``/v1/models`` and ``/v1/chat/completions``, streaming too.

``model`` is a target's name; each choice is one call of the budget, all of a request's or none. ``Idempotency-Key`` is
the request id: a client's retry is the same call, charged once and answered alike.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.errors import Fault
from quintain_gateway.answering import Answering
from quintain_gateway.asking import Asking, Wanted
from quintain_gateway.door import Api, Door, attended, proven, read_json
from quintain_gateway.keys import key_of
from quintain_gateway.methods import resource
from quintain_gateway.openai_body import ChatAnswer, ChatBody, Model, ModelList, OpenAIError
from quintain_gateway.openai_stream import ChatCompletion
from quintain_gateway.openai_wire import read_chat, write_error, write_model, write_models
from quintain_gateway.operation import SESSION_TOKEN, Operation, faults
from quintain_gateway.refusals import NotFound
from quintain_gateway.terms import deadline_seconds_of
from quintain_gateway.visit import visit_of

MODELS, MODEL, CHAT = "/v1/models", "/v1/models/{model}", "/v1/chat/completions"

_ALWAYS = (401, 405, 500, 503)
_ASKED = (400, 402, 403, 408, 409, 410, 413, 422, 499, 502, 504)

OPERATIONS = (
    Operation(
        "GET", MODELS, "The targets that the session may call, as OpenAI's models", token=SESSION_TOKEN,
        answers={200: ModelList, **faults(*_ALWAYS, body=OpenAIError), **faults(431)},
    ),
    Operation(
        "GET", MODEL, "One target as a model of OpenAI's", token=SESSION_TOKEN,
        answers={200: Model, **faults(404, *_ALWAYS, body=OpenAIError), **faults(431)},
    ),
    Operation(
        "POST", CHAT, "Ask a target, as OpenAI's chat completions", token=SESSION_TOKEN, asks=ChatBody, streams=True,
        answers={200: ChatAnswer, **faults(*_ASKED, *_ALWAYS, body=OpenAIError), **faults(431)},
    ),
)  # fmt: skip


def refusal(fault: Fault) -> Response:
    """A fault as OpenAI's clients read it."""
    status, body, headers = write_error(fault)
    return JSONResponse(body, status_code=status, headers=headers)


API = Api(refusal=refusal)


class OpenAI:
    """The endpoints of OpenAI's API, behind any prefix."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.routes: list[Route] = [
            resource(MODELS, {"GET": self.models}, API.endpoint, anywhere=True),
            resource(MODEL, {"GET": self.model}, API.endpoint, anywhere=True),
            resource(CHAT, {"POST": self.chat}, API.endpoint, anywhere=True),
        ]

    async def models(self, request: Request) -> Response:
        """``GET /v1/models``"""
        info = await (await self._door.client(request)).get_info()
        return JSONResponse(write_models(info.available_targets))

    async def model(self, request: Request) -> Response:
        """``GET /v1/models/{model}``"""
        info = await (await self._door.client(request)).get_info()
        name = request.path_params["model"]
        if name not in info.available_targets:
            raise NotFound(f"There is no such target. Available: {', '.join(info.available_targets)}")
        return JSONResponse(write_model(name))

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``"""
        client = await self._door.client(request)
        async with proven(client):
            key, seconds = key_of(request), deadline_seconds_of(request, self._door.clock)
            chat = read_chat(read_json(await self._door.read_body(request)))
        wanted = Wanted(
            request=chat.request, key=key, deadline_seconds=seconds, choices=chat.choices, listens=chat.stream
        )
        model = chat.request.target or ""
        answer = Answering(
            ChatCompletion(f"chatcmpl-{key.text}", model, include_usage=chat.include_usage),
            Asking(client, wanted),
            key.headers(chat.ignored),
            visit_of(request),
            keep_alive_seconds=self._door.limits.keep_alive_seconds,
        )
        return await attended(request, answer.streamed() if chat.stream else answer.whole())
