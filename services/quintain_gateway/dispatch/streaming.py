"""A streaming response, and the text of one choice as it is assembled from the chunks of several attempts."""

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
    """What was passed on of one answer, and what still may be.

    A later attempt begins the answer again. What was passed on cannot be taken back: a later attempt that repeats it
    goes on from there, and one that differs, or of which a piece was lost, is waited for to its end. The result then
    shows whether it begins with the same words.
    """

    def __init__(self) -> None:
        self._sent: list[str] = []
        self._attempt = self._seq = 0
        #: What was passed on and this attempt has not repeated yet.
        self._unrepeated = ""
        self._has_diverged = False

    @property
    def has_output(self) -> bool:
        """Whether anything was passed on."""
        return bool(self._sent)

    def add_chunk(self, chunk: Chunk) -> str:
        """What of this piece is to be passed on, often all of it."""
        if chunk.attempt > self._attempt:
            self._attempt, self._seq = chunk.attempt, 0
            self._unrepeated, self._has_diverged = "".join(self._sent), False
        if chunk.attempt < self._attempt or chunk.seq < self._seq or self._has_diverged:
            return ""  # void, or a repeat
        repeated_length = min(len(self._unrepeated), len(chunk.delta))
        if chunk.seq > self._seq or not self._unrepeated.startswith(chunk.delta[:repeated_length]):
            self._has_diverged = True
            return ""
        self._seq += 1
        self._unrepeated = self._unrepeated[repeated_length:]
        return self._emit(chunk.delta[repeated_length:])

    def finish(self, result: Result) -> str:
        """What is still to be passed on at the end. Raises `ProviderFailed` where the answer is another one than was
        begun."""
        sent = "".join(self._sent)
        if not result.raw_text.startswith(sent):
            raise ProviderFailed(
                "The answer was begun again by a later attempt and differs: ask again under the same Idempotency-Key "
                "without stream, and the whole answer comes without another charge",
                charged=True,
            )
        return self._emit(result.raw_text[len(sent) :])

    def _emit(self, text: str) -> str:
        if text:
            self._sent.append(text)
        return text


class CallStreamingResponse(StreamingResponse):
    """A body in pieces. ``encode_fault`` writes the fault of an answer that this gateway cannot bring to its end."""

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
        """Write it, for as long as the client is there."""
        has_started = False

        async def tracked_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await super().__call__(scope, receive, tracked_send)
        except asyncio.CancelledError:
            # The server's grace is over; nobody else cancels this task.
            if not has_started:
                raise
            await send(
                {"type": "http.response.body", "body": self._encode_fault(GatewayStopping()), "more_body": False}
            )
        finally:
            await self._calls.close()
