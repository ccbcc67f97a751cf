"""Writing the answer to calls that are under way, in any dialect: whole, kept waiting for, or streamed.

Headers go out when it is certain that the calls may be made. Whoever leaves before the end takes them back.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response

from quintain.contracts.invoke import Chunk, Result
from quintain.errors import Fault
from quintain_gateway.asking import Asking, Heard
from quintain_gateway.assembly import Assembly
from quintain_gateway.flow import Flow
from quintain_gateway.refusals import EVENT_STREAM, JSON
from quintain_gateway.visit import Visit

#: What stands between a stream and whoever reads it keeps nothing back.
UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Dialect(Protocol):
    """How one API writes an answer. Everything is pure; events are bytes as they go over the wire."""

    @property
    def keep_alive(self) -> bytes:
        """An event that nobody reads."""

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The answer as one body."""

    def error(self, fault: Fault) -> dict[str, Any]:
        """A fault as a body."""

    def opened(self, choices: int) -> bytes:
        """The answer begins."""

    def said(self, choice: int, delta: str, *, first: bool) -> bytes:
        """A piece of a choice's text."""

    def ended(self, choice: int, result: Result) -> bytes:
        """A choice is at its end; its text has been said."""

    def closed(self, results: Sequence[Result]) -> bytes:
        """The whole answer is at its end."""

    def failed(self, fault: Fault) -> bytes:
        """The answer has no end."""


class Answering:
    """One request's answer. ``headers`` go with it, whatever it is; a client that waits hears something every
    ``keep_alive_seconds``."""

    def __init__(
        self, dialect: Dialect, calls: Asking, headers: Mapping[str, str], visit: Visit, *, keep_alive_seconds: float
    ) -> None:
        self._dialect, self._calls, self._headers, self._visit = dialect, calls, dict(headers), visit
        self._seconds = keep_alive_seconds

    async def whole(self) -> Response:
        """The whole answer, or, where it takes long, a body that begins with blank lines. Raises a `Fault`."""
        async with self._begun():
            results = await self._calls.results(self._seconds)
            if results is None:
                await self._calls.decided()
                return Flow(self._waited_for(), self._calls, self._error, JSON, self._headers)
        await self._calls.close()
        return JSONResponse(self._dialect.whole(results), headers={**self._headers, **facts_of(results)})

    async def streamed(self) -> Response:
        """Server-sent events, once it is certain that the calls may be made. Raises a `Fault`."""
        async with self._begun():
            first = await self._calls.next(self._seconds)
            if first is None:
                await self._calls.decided()
            elif isinstance(first.what, Fault):
                raise first.what
        known = facts_of([first.what]) if first is not None and isinstance(first.what, Result) else {}
        headers = {**self._headers, **known, **UNBUFFERED}
        return Flow(self._events(first), self._calls, self._failed, EVENT_STREAM, headers)

    @contextlib.asynccontextmanager
    async def _begun(self) -> AsyncIterator[None]:
        """Ask; where the answer cannot even begin, whatever still runs is taken back."""
        try:
            await self._calls.begin()
            yield
        except BaseException:
            await self._calls.close()
            raise

    async def _waited_for(self) -> AsyncIterator[bytes]:
        """Blank lines, which JSON does not mind, until the answer is there."""
        yield b"\n"
        try:
            while (results := await self._calls.results(self._seconds)) is None:
                yield b"\n"
        except Fault as fault:
            yield self._error(fault)
        else:
            yield _json(self._dialect.whole(results))

    async def _events(self, first: Heard | None) -> AsyncIterator[bytes]:
        texts = [Assembly() for _ in range(self._calls.choices)]
        results: dict[int, Result] = {}
        yield self._dialect.opened(len(texts))
        heard = first
        try:
            while len(results) < len(texts):
                yield self._dialect.keep_alive if heard is None else self._event(texts[heard.choice], heard)
                if heard is not None and isinstance(heard.what, Result):
                    results[heard.choice] = heard.what
                if len(results) < len(texts):
                    heard = await self._calls.next(self._seconds)
        except Fault as fault:
            yield self._failed(fault)
        else:
            yield self._dialect.closed([results[choice] for choice in range(len(texts))])

    def _error(self, fault: Fault) -> bytes:
        self._visit.code = fault.code
        return _json(self._dialect.error(fault))

    def _failed(self, fault: Fault) -> bytes:
        self._visit.code = fault.code
        return self._dialect.failed(fault)

    def _event(self, text: Assembly, heard: Heard) -> bytes:
        """What is written for one thing heard, often nothing. Raises the `Fault` that a call ended with."""
        if isinstance(heard.what, Fault):
            raise heard.what
        first = not text.begun
        delta = text.piece(heard.what) if isinstance(heard.what, Chunk) else text.rest(heard.what)
        said = self._dialect.said(heard.choice, delta, first=first) if delta else b""
        return said if isinstance(heard.what, Chunk) else said + self._dialect.ended(heard.choice, heard.what)


def facts_of(results: Sequence[Result]) -> dict[str, str]:
    """What the ledger and the queue say of the calls, for the answer's headers."""
    return {
        "x-quintain-call-count": str(max(result.call_count for result in results)),
        "x-quintain-max-calls": str(results[0].max_calls),
        "x-quintain-queued-ms": f"{max(result.queued_ms for result in results):.0f}",
    }


def _json(body: object) -> bytes:
    return json.dumps(body).encode()
