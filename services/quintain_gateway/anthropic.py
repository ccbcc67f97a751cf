"""Anthropic's API over the session's targets: ``POST /v1/messages``, streaming too. ``model`` is a target's name."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.errors import Fault
from quintain_gateway.answering import Answering
from quintain_gateway.anthropic_body import AnthropicError, MessageAnswer, MessagesBody
from quintain_gateway.anthropic_stream import AnthropicMessage
from quintain_gateway.anthropic_wire import read_messages, write_error
from quintain_gateway.asking import Asking, Wanted
from quintain_gateway.door import Api, Door, attended, bearer, proven, read_json
from quintain_gateway.keys import key_of
from quintain_gateway.methods import resource
from quintain_gateway.operation import SESSION_TOKEN, Operation, faults
from quintain_gateway.terms import deadline_seconds_of
from quintain_gateway.visit import visit_of

MESSAGES = "/v1/messages"

_FAULTS = (400, 401, 402, 403, 405, 408, 409, 410, 413, 422, 499, 500, 502, 503, 504)

OPERATIONS = (
    Operation(
        "POST", MESSAGES, "Ask a target, as Anthropic's messages; the token may come as x-api-key",
        token=SESSION_TOKEN, asks=MessagesBody, streams=True,
        answers={200: MessageAnswer, **faults(*_FAULTS, body=AnthropicError), **faults(431)},
    ),
)  # fmt: skip


def refusal(fault: Fault) -> Response:
    """A fault as Anthropic's clients read it."""
    status, body, headers = write_error(fault)
    return JSONResponse(body, status_code=status, headers=headers)


API = Api(refusal=refusal, id_header="request-id")


class Anthropic:
    """The endpoint of Anthropic's API, behind any prefix. Its clients send their key as ``x-api-key``, too."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.routes: list[Route] = [resource(MESSAGES, {"POST": self.messages}, API.endpoint, anywhere=True)]

    async def messages(self, request: Request) -> Response:
        """``POST /v1/messages``"""
        client = await self._door.client(request, token_of)
        async with proven(client):
            key, seconds = key_of(request), deadline_seconds_of(request, self._door.clock)
            asked = read_messages(read_json(await self._door.read_body(request)))
        wanted = Wanted(request=asked.request, key=key, deadline_seconds=seconds, listens=asked.stream)
        answer = Answering(
            AnthropicMessage(f"msg_{key.text}", asked.request.target or ""),
            Asking(client, wanted),
            key.headers(asked.ignored),
            visit_of(request),
            keep_alive_seconds=self._door.limits.keep_alive_seconds,
        )
        return await attended(request, answer.streamed() if asked.stream else answer.whole())


def token_of(request: Request) -> str:
    """The session's token: Anthropic's clients send it as ``x-api-key``, or as a bearer token."""
    return request.headers.get("x-api-key") or bearer(request)
