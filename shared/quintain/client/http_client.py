"""An evaluator's client, and an administrator's, over HTTP: `Client` and `Admin`, where only a gateway can be reached.

A call whose task is cancelled closes its connection, and the gateway takes it back.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote, urlencode

from pydantic import JsonValue

from quintain.client.client import (
    ANSWER_SECONDS,
    DEFAULT_DEADLINE_SECONDS,
    GRACE_SECONDS,
    BatchItem,
    request_from,
    request_of,
)
from quintain.client.evaluator import Asked
from quintain.client.http_line import Answer, HttpLine, line_to
from quintain.clock import Clock
from quintain.contracts import metadata
from quintain.contracts.invoke import ChatMessage, FaultReply, InvokeRequest, InvokeSettings, JsonObject, Result
from quintain.contracts.message import Message
from quintain.errors import BadRequest, BudgetUnavailable, Expired, Fault, NoAnswer
from quintain.routes import DEADLINE_HEADER, REQUEST_ID_HEADER
from quintain.telemetry.conventions import asked_over_http
from quintain.telemetry.spans import context_headers, span, traceparent


class _Items(Message):
    """The answers of a batch: results, and faults beside an empty ``output``."""

    responses: list[JsonObject]


class HttpClient:
    """One session's right to call, as `quintain.connect` gives it for an ``http(s)://`` URL."""

    def __init__(self, line: HttpLine, clock: Clock, traceparent: str | None = None) -> None:
        self._line, self._clock, self._began_in = line, clock, traceparent

    async def invoke(
        self,
        question: str | None = None,
        *,
        target: str | None = None,
        system_prompt: str | None = None,
        messages: Sequence[ChatMessage] | None = None,
        settings: InvokeSettings | None = None,
    ) -> Result:
        """Ask a target (the session's default where none is named). Raises a `Fault`."""
        return await self.send(
            request_from(
                question=question, target=target, system_prompt=system_prompt, messages=messages, settings=settings
            )
        )

    async def send(
        self,
        request: InvokeRequest,
        *,
        request_id: str | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> Result:
        """Ask with a whole request. The same ``request_id`` is the same call: charged once, answered alike.

        Raises a `Fault`: `Expired` where nobody answered in time, `Overloaded` where the queue is full.
        """
        headers = {}
        if request_id:
            if not request_id.isascii() or not request_id.isprintable():
                raise BadRequest("request_id: over HTTP it is printable ASCII")
            headers[REQUEST_ID_HEADER] = request_id
        return await self._call("/invoke", request.to_wire(), Result, headers, deadline_seconds)

    async def invoke_batch(
        self, requests: Sequence[Asked], *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> list[BatchItem]:
        """Ask all at once, answers in order. The budget is reserved all or nothing (`BudgetExhausted`); after
        that a failing item never loses the others, and what an item did not use is given back.

        It is one request: together the items may be as large as one body (`PayloadTooLarge`).
        """
        if isinstance(requests, str):
            raise BadRequest("requests: a batch is a list of requests, and this is one text")
        asks = [request_of(item) for item in requests]
        # What cannot be read has its place in the batch all the same, and its reservation, as over the bus.
        items = b",".join(b"null" if isinstance(ask, Fault) else ask.to_wire() for ask in asks)
        said = await self._call("/invokeBatch", b'{"requests":[%s]}' % items, _Items, {}, deadline_seconds)
        return [
            BatchItem(None, ask) if isinstance(ask, Fault) else _item(answer)
            for ask, answer in zip(asks, said.responses, strict=True)
        ]

    async def get_info(self, *, per_target: bool = False) -> metadata.Info:
        """The session, its counters and the targets it may call; and what went to which, where that is asked for."""
        path = "/info?perTarget=true" if per_target else "/info"
        return await _told(self._line, "GET", path, metadata.Info)

    async def open_child(self, ask: metadata.OpenSession) -> metadata.SessionOpened:
        """Open a session that may only narrow this one and draws on its budget."""
        return await _told(self._line, "POST", "/sessions", metadata.SessionOpened, ask)

    async def _call(
        self, path: str, body: bytes, answers: type[Answer], headers: dict[str, str], deadline_seconds: float
    ) -> Answer:
        deadline = int(self._clock.now_ms() + deadline_seconds * 1000)
        try:
            opening = asked_over_http("POST", path, request_id=headers.get(REQUEST_ID_HEADER))
            with span(opening, parent=self._began_in if traceparent() is None else None):
                return await self._line.ask(
                    "POST",
                    path,
                    answers,
                    body=body,
                    headers={**headers, DEADLINE_HEADER: str(deadline), **context_headers()},
                    # The fleet's own word on an expired call comes first: the client only outwaits it.
                    timeout_seconds=deadline_seconds + GRACE_SECONDS,
                )
        except NoAnswer:
            raise Expired(
                f"No answer within {deadline_seconds:.0f} s; whether it was charged, `info` says", charged=True
            ) from None


class HttpAdmin:
    """The administrator's client, over HTTP. Every method raises a `Fault`, or `GatewayUnavailable`."""

    def __init__(self, line: HttpLine, *, timeout_seconds: float = ANSWER_SECONDS) -> None:
        self._line, self._timeout_seconds = line, timeout_seconds

    async def open(self, ask: metadata.OpenSession) -> metadata.SessionOpened:
        """Open a session; its token is in the answer and nowhere else."""
        return await self._told("POST", "/sessions", metadata.SessionOpened, ask)

    async def amend(self, ask: metadata.AmendSession) -> metadata.Info:
        """Change a session's limit or state."""
        return await self._told("PATCH", _path(ask.session_id), metadata.Info, ask)

    async def list(self, ask: metadata.ListSessions) -> metadata.SessionList:
        """One page of sessions, newest first."""
        query = urlencode(json.loads(ask.to_wire()))
        return await self._told("GET", f"/sessions?{query}" if query else "/sessions", metadata.SessionList)

    async def show(self, session_id: str) -> metadata.Info:
        """One session and its counters."""
        return await self._told("GET", _path(session_id), metadata.Info)

    async def _told(self, method: str, path: str, answers: type[Answer], ask: Message | None = None) -> Answer:
        return await _told(self._line, method, path, answers, ask, timeout_seconds=self._timeout_seconds)


@contextlib.asynccontextmanager
async def connect_http(url: str, token: str, *, traceparent: str | None = None) -> AsyncIterator[HttpClient]:
    """A session's client, its token proven. Raises `ConfigError`, `GatewayUnavailable`, `Unauthorized`.

    ``traceparent`` is the trace that its calls belong to where none is under way.
    """
    async with line_to(url, token) as line:
        clock = Clock()
        client = HttpClient(line, clock, traceparent)
        # The first word proves the token and tells the metadata service's time, by which deadlines are set.
        clock.learn((await client.get_info()).now)
        yield client


@contextlib.asynccontextmanager
async def connect_http_admin(url: str, token: str, *, timeout_seconds: float) -> AsyncIterator[HttpAdmin]:
    """The administrator's client. Raises `ConfigError`."""
    async with line_to(url, token) as line:
        yield HttpAdmin(line, timeout_seconds=timeout_seconds)


async def _told(
    line: HttpLine,
    method: str,
    path: str,
    answers: type[Answer],
    ask: Message | None = None,
    *,
    timeout_seconds: float = ANSWER_SECONDS,
) -> Answer:
    body = None if ask is None else ask.to_wire()
    try:
        return await line.ask(method, path, answers, body=body, timeout_seconds=timeout_seconds)
    except NoAnswer as silence:
        raise BudgetUnavailable(silence.message) from None


def _path(session_id: str) -> str:
    # What has a slash or dots in it would be another path on its way; no session's id has.
    if not re.fullmatch(r"[\w-]+", session_id):
        raise BadRequest(f"sessionId: there is no session {session_id!r}; `quintain session list` shows them")
    return f"/sessions/{quote(session_id)}"


def _item(answer: dict[str, JsonValue]) -> BatchItem:
    body = json.dumps(answer)
    if "error" in answer:
        return BatchItem(None, FaultReply.from_wire(body).raised())
    return BatchItem(Result.from_wire(body), None)
