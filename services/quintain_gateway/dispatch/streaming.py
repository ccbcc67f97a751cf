"""The streaming HTTP response, and the assembly of one choice's text from the chunks of several attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from quintain.contracts.invoke import Chunk, Result
from quintain.errors import Fault, ProviderFailed
from quintain_gateway.dispatch.dispatch import CallGroup
from quintain_gateway.http.errors import GatewayStopping


class ChunkAssembler:
    """Decides which text of one choice is sent to the client when a worker retries a call.

    Every attempt produces the text from the beginning, and text that was sent cannot be taken back. An attempt that
    repeats the sent text continues from there. For an attempt that differs, or lost a chunk, nothing is sent until its
    result arrives; the result shows whether it begins with the sent text.
    """

    def __init__(self) -> None:
        self._sent: list[str] = []
        self._attempt = self._seq = 0
        #: Text that was sent and that the current attempt has not repeated yet.
        self._unrepeated = ""
        self._has_diverged = False

    @property
    def has_output(self) -> bool:
        """Whether any text was sent."""
        return bool(self._sent)

    def add_chunk(self, chunk: Chunk) -> str:
        """Add a chunk and return the text to send for it: often all of the chunk, empty if it repeats sent text."""
        if chunk.attempt > self._attempt:
            self._attempt, self._seq = chunk.attempt, 0
            self._unrepeated, self._has_diverged = "".join(self._sent), False
        if chunk.attempt < self._attempt or chunk.seq < self._seq or self._has_diverged:
            return ""  # of an earlier attempt, or a duplicate
        repeated_length = min(len(self._unrepeated), len(chunk.delta))
        if chunk.seq > self._seq or not self._unrepeated.startswith(chunk.delta[:repeated_length]):
            self._has_diverged = True
            return ""
        self._seq += 1
        self._unrepeated = self._unrepeated[repeated_length:]
        return self._emit(chunk.delta[repeated_length:])

    def finish(self, result: Result) -> str:
        """Return the rest of the text to send, from the result of the call.

        Raises `ProviderFailed` if the result does not begin with the text that was sent.
        """
        sent = "".join(self._sent)
        if not result.raw_text.startswith(sent):
            raise ProviderFailed(
                "A retry gave another answer than the part that was streamed: repeat the request with the same "
                "Idempotency-Key and without stream to get the whole answer without another charge",
                charged=True,
            )
        return self._emit(result.raw_text[len(sent) :])

    def _emit(self, text: str) -> str:
        if text:
            self._sent.append(text)
        return text


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
