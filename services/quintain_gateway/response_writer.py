"""Writes the response of running calls in the format of an API: as one JSON body or as server-sent events.

Headers are sent once it is certain that the calls may be made. If the client disconnects before the end, the calls are
cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from quintain.contracts.headers import REQUEST_ID_HEADER
from quintain.contracts.invoke import Chunk, Result
from quintain.errors import Fault
from quintain_gateway.answer_encoder import KEEP_ALIVE_COMMENT, AnswerEncoder
from quintain_gateway.calls import CallEvent, CallGroup
from quintain_gateway.endpoint import RequestContext
from quintain_gateway.errors import EVENT_STREAM_MEDIA_TYPE, JSON_MEDIA_TYPE, GatewayStopping, StillRunning
from quintain_gateway.settings import GatewayLimits

#: The response header that names what a call was made without.
IGNORED_HEADER = "x-quintain-ignored"

#: The maximum number and length of names in the header: they come from the client.
MAX_LISTED_NAMES, MAX_NAME_LENGTH = 20, 60

NO_BUFFERING_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class ResponseWriter:
    """Writes the response of one HTTP request.

    Once the status is sent, something is sent every ``keep_alive_seconds`` of the limits, so that proxies do not close
    the connection.
    """

    def __init__(
        self, encoder: AnswerEncoder, calls: CallGroup, context: RequestContext, limits: GatewayLimits
    ) -> None:
        self._encoder, self._calls, self._context = encoder, calls, context
        self._headers = {REQUEST_ID_HEADER: calls.key.text, **ignored_header(encoder.ignored)}
        self._limits, self._keep_alive_seconds = limits, limits.keep_alive_seconds

    async def json_response(self) -> Response:
        """Return the response as one JSON body.

        The status line is held until the calls end; after ``keep_alive_seconds`` it is made sure that they may be made.
        With ``early_status``, the body is streamed from then on and begins with newlines, which JSON permits. Raises
        the `Fault` of a call that fails before headers are sent, and `StillRunning` for calls under the client's own
        key, which go on.
        """
        async with self._started_calls():
            results = await self._calls.results(min(self._keep_alive_seconds, self._limits.answer_seconds))
            if results is None:
                await self._calls.check_and_reserve()
                if self._limits.early_status:
                    return CallStreamingResponse(
                        self._padded_json(), self._calls, self._encode_error, JSON_MEDIA_TYPE, self._headers
                    )
                results = await self._held_results()
        await self._calls.close()
        return JSONResponse(
            self._encoder.encode_response(results), headers={**self._headers, **result_headers(results, self._encoder)}
        )

    async def streaming_response(self) -> Response:
        """Return a stream of server-sent events, once it is certain that the calls may be made.

        Raises the `Fault` of a call that fails before headers are sent.
        """
        async with self._started_calls():
            first_event = await self._calls.next_event(self._keep_alive_seconds)
            if first_event is None:
                await self._calls.check_and_reserve()
            elif isinstance(first_event.payload, Fault):
                raise first_event.payload
        known_headers = (
            result_headers([first_event.payload], self._encoder)
            if first_event is not None and isinstance(first_event.payload, Result)
            else {}
        )
        headers = {**self._headers, **known_headers, **NO_BUFFERING_HEADERS}
        return CallStreamingResponse(
            self._encoded_events(first_event), self._calls, self._encode_stream_error, EVENT_STREAM_MEDIA_TYPE, headers
        )

    async def _held_results(self) -> list[Result]:
        """Wait for the results until the deadline, or under the client's own key for ``answer_seconds`` in all."""
        hold_seconds = max(0.0, self._limits.answer_seconds - self._keep_alive_seconds)
        results = await self._calls.results(hold_seconds if self._calls.key.is_from_client else None)
        if results is None:
            raise StillRunning
        return results

    @contextlib.asynccontextmanager
    async def _started_calls(self) -> AsyncIterator[None]:
        """Start the calls, and close them if the response cannot be started."""
        try:
            await self._calls.start()
            yield
        except BaseException as error:
            # The task is cancelled if the client disconnects.
            await self._calls.close(client_left=isinstance(error, asyncio.CancelledError))
            raise

    async def _padded_json(self) -> AsyncIterator[bytes]:
        """Yield newlines until the results are there, then the JSON body."""
        yield b"\n"
        try:
            while (results := await self._calls.results(self._keep_alive_seconds)) is None:
                yield b"\n"
        except Fault as fault:
            yield self._encode_error(fault)
        else:
            yield _json_bytes(self._encoder.encode_response(results))

    async def _encoded_events(self, first_event: CallEvent | None) -> AsyncIterator[bytes]:
        count = self._calls.choice_count
        results: dict[int, Result] = {}
        event = first_event
        try:
            while len(results) < count:
                yield KEEP_ALIVE_COMMENT if event is None else self._encode_event(event)
                if event is not None and isinstance(event.payload, Result):
                    results[event.choice] = event.payload
                if len(results) < count:
                    event = await self._calls.next_event(self._keep_alive_seconds)
        except Fault as fault:
            yield self._encode_stream_error(fault)
        else:
            yield self._encoder.encode_end([results[choice] for choice in range(count)])

    def _encode_error(self, fault: Fault) -> bytes:
        self._context.code = fault.code
        return _json_bytes(self._encoder.encode_error(fault))

    def _encode_stream_error(self, fault: Fault) -> bytes:
        self._context.code = fault.code
        return self._encoder.encode_stream_error(fault)

    def _encode_event(self, event: CallEvent) -> bytes:
        """Encode one event, often as no bytes at all. Raises the `Fault` that ended a call."""
        if isinstance(event.payload, Fault):
            raise event.payload
        if isinstance(event.payload, Chunk):
            return self._encoder.encode_chunk(event.choice, event.payload)
        return self._encoder.encode_result(event.choice, event.payload)


def result_headers(results: Sequence[Result], encoder: AnswerEncoder) -> dict[str, str]:
    """Return the response headers: budget of the session, longest wait in a queue, names of ignored parameters."""
    return {
        **ignored_header(encoder.ignored_fields(results)),
        "x-quintain-call-count": str(max(result.call_count for result in results)),
        "x-quintain-max-calls": str(results[0].max_calls),
        "x-quintain-queued-ms": f"{max(result.queued_ms for result in results):.0f}",
    }


def format_field_names(fields: Iterable[str]) -> str:
    """Format field names as a header value: sorted, other characters replaced by ``?``, at most `MAX_LISTED_NAMES`."""
    names = sorted({re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", field[:MAX_NAME_LENGTH]) for field in fields})
    omitted_count = len(names) - MAX_LISTED_NAMES
    return ", ".join([*names[:MAX_LISTED_NAMES], *([f"and {omitted_count} more"] if omitted_count > 0 else [])])


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """Return the header that names what a call was made without, or what an answer is without; none for no names."""
    written = format_field_names(names)
    return {IGNORED_HEADER: written} if written else {}


def _json_bytes(body: object) -> bytes:
    return json.dumps(body).encode()


class CallStreamingResponse(StreamingResponse):
    """A response body that is written while calls run, and closes them at the end.

    ``encode_fault`` encodes the fault to send as the last bytes if the gateway stops before the body is complete.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        calls: CallGroup,
        encode_fault: Callable[[Fault], bytes],
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._calls, self._encode_fault = calls, encode_fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the body until it is complete or the client disconnects."""
        has_started = is_complete = False

        async def tracked_send(message: Message) -> None:
            nonlocal has_started, is_complete
            has_started = True
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await super().__call__(scope, receive, tracked_send)
        except asyncio.CancelledError:
            # The server's grace period is over; nothing else cancels this task.
            if not has_started:
                raise
            await send(
                {"type": "http.response.body", "body": self._encode_fault(GatewayStopping()), "more_body": False}
            )
        finally:
            await self._calls.close(client_left=not is_complete)
