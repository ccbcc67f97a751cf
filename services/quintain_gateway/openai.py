"""OpenAI's API over the session's targets: ``/v1/chat/completions``, streaming too.

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
from quintain_gateway.openai_body import ChatAnswer, ChatBody, OpenAIError
from quintain_gateway.openai_stream import ChatCompletion
from quintain_gateway.openai_wire import read_chat, write_error
from quintain_gateway.operation import SESSION_TOKEN, Operation, faults
from quintain_gateway.terms import deadline_seconds_of
from quintain_gateway.visit import visit_of

CHAT = "/v1/chat/completions"

_ALWAYS = (401, 405, 500, 503)
_ASKED = (400, 402, 403, 408, 409, 410, 413, 422, 499, 502, 504)

OPERATIONS = (
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
    """The endpoint of OpenAI's API, behind any prefix."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.routes: list[Route] = [
            resource(CHAT, {"POST": self.chat}, API.endpoint, anywhere=True),
        ]

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
