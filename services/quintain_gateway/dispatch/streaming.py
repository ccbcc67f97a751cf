"""The streaming HTTP response, and the assembly of one choice's text from the chunks of several attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from quintain.contracts.chunk import Chunk, ReasoningChunk, ToolCallChunk
from quintain.contracts.invoke import Result
from quintain.errors import Fault, ProviderFailed
from quintain_gateway.dispatch.dispatch import CallGroup
from quintain_gateway.http.errors import GatewayStopping


class ChunkAssembler:
    """Decides which text, tool calls and reasoning of one choice are sent to the client when a worker retries a call.

    Every attempt produces its answer from the beginning, and what was sent cannot be taken back. An attempt that
    repeats it continues from there. For an attempt that differs, or lost a chunk, nothing is sent until its result
    arrives; the result shows whether it begins with what was sent.
    """

    def __init__(self) -> None:
        #: What was sent: the text (None), the arguments of each call by its index, and each piece of reasoning.
        self._sent: dict[int | None, list[str]] = {}
        #: Id and name of each call that was sent.
        self._calls: dict[int, tuple[str | None, str | None]] = {}
        self._attempt = self._seq = 0
        #: The pieces of reasoning of which a signature or redacted content was sent, by their index.
        self._sealed = set[int]()
        #: What was sent and that the current attempt has not repeated yet.
        self._unrepeated: dict[int | None, str] = {}
        self._has_diverged = False

    @property
    def has_output(self) -> bool:
        """Whether any text was sent."""
        return None in self._sent

    def add_chunk(self, chunk: Chunk) -> str:
        """Add a chunk and return the text to send for it: often all of the chunk, empty if it repeats sent text."""
        return self._add(None, chunk.delta) if self._is_next(chunk) else ""

    def add_call_chunk(self, chunk: Chunk, piece: ToolCallChunk) -> ToolCallChunk | None:
        """Add the chunk of a tool call and return what to send for it, or None if it repeats what was sent."""
        if not self._is_next(chunk):
            return None
        is_new = piece.index not in self._calls
        head = (piece.id, piece.name)
        if (piece.id is None) if is_new else (piece.id is not None and self._calls[piece.index] != head):
            self._has_diverged = True
            return None
        if is_new:
            self._calls[piece.index] = head
        arguments = self._add(piece.index, piece.arguments)
        if is_new:
            return piece
        return ToolCallChunk(index=piece.index, arguments=arguments) if arguments else None

    def add_reasoning_chunk(self, chunk: Chunk, piece: ReasoningChunk) -> ReasoningChunk | None:
        """Add the chunk of a piece of reasoning and return what to send for it, or None if it repeats what was sent."""
        if not self._is_next(chunk):
            return None
        channel = _reasoning_channel(piece.index)
        text = self._add(channel, piece.text)
        if _is_sealing(piece) and self._unrepeated.get(channel):
            # The signature of another text than the one that was sent.
            self._has_diverged = True
        return None if self._has_diverged else self._unsent_reasoning(piece, text)

    def finish_reasoning(self, result: Result) -> list[ReasoningChunk]:
        """Return the rest of the reasoning to send, from the result of the call.

        Raises `ProviderFailed` if the result does not begin with the reasoning that was sent.
        """
        pieces = [piece for message in result.output for piece in message.reasoning or []]
        if any(channel is not None and channel < -len(pieces) for channel in self._sent):
            raise _other_answer()
        unsent = [
            self._unsent_reasoning(
                ReasoningChunk(index=index, **piece.model_dump()), self._rest(_reasoning_channel(index), piece.text)
            )
            for index, piece in enumerate(pieces)
        ]
        return [piece for piece in unsent if piece is not None]

    def _unsent_reasoning(self, piece: ReasoningChunk, text: str) -> ReasoningChunk | None:
        is_sealed = piece.index in self._sealed
        if text and is_sealed:
            raise _other_answer()
        if _is_sealing(piece):
            self._sealed.add(piece.index)
        elif not text:
            return None
        return None if is_sealed else piece.model_copy(update={"text": text})

    def finish(self, result: Result) -> str:
        """Return the rest of the text to send, from the result of the call.

        Raises `ProviderFailed` if the result does not begin with the text that was sent.
        """
        return self._rest(None, result.raw_text)

    def finish_calls(self, result: Result) -> list[ToolCallChunk]:
        """Return the rest of the tool calls to send, from the result of the call.

        Raises `ProviderFailed` if the result does not begin with those that were sent.
        """
        calls = [call for message in result.output for call in message.tool_calls or []]
        if len(calls) < len(self._calls):
            raise _other_answer()
        pieces: list[ToolCallChunk] = []
        for index, call in enumerate(calls):
            rest = self._rest(index, call.arguments)
            if index not in self._calls:
                pieces.append(ToolCallChunk(index=index, id=call.id, name=call.name, arguments=rest))
            elif self._calls[index] != (call.id, call.name):
                raise _other_answer()
            elif rest:
                pieces.append(ToolCallChunk(index=index, arguments=rest))
        return pieces

    def _is_next(self, chunk: Chunk) -> bool:
        """Whether the chunk is the next one of the newest attempt, which has repeated everything that was sent."""
        if chunk.attempt > self._attempt:
            self._attempt, self._seq, self._has_diverged = chunk.attempt, 0, False
            self._unrepeated = {channel: "".join(pieces) for channel, pieces in self._sent.items()}
        if chunk.attempt < self._attempt or chunk.seq < self._seq or self._has_diverged:
            return False  # of an earlier attempt, or a duplicate
        self._has_diverged = chunk.seq > self._seq
        self._seq += 1
        return not self._has_diverged

    def _add(self, channel: int | None, delta: str) -> str:
        unrepeated = self._unrepeated.get(channel, "")
        repeated_length = min(len(unrepeated), len(delta))
        if not unrepeated.startswith(delta[:repeated_length]):
            self._has_diverged = True
            return ""
        self._unrepeated[channel] = unrepeated[repeated_length:]
        return self._emit(channel, delta[repeated_length:])

    def _rest(self, channel: int | None, whole: str) -> str:
        sent = "".join(self._sent.get(channel, ()))
        if not whole.startswith(sent):
            raise _other_answer()
        return self._emit(channel, whole[len(sent) :])

    def _emit(self, channel: int | None, text: str) -> str:
        if text:
            self._sent.setdefault(channel, []).append(text)
        return text


def _is_sealing(piece: ReasoningChunk) -> bool:
    """Whether nothing may follow this chunk in its piece of reasoning."""
    return piece.signature is not None or piece.redacted is not None


def _reasoning_channel(index: int) -> int:
    """Return the key of a piece of reasoning beside those of the calls, which are 0 and above."""
    return -1 - index


def _other_answer() -> ProviderFailed:
    return ProviderFailed(
        "A retry gave another answer than the part that was streamed: repeat the request with the same "
        "Idempotency-Key and without stream to get the whole answer without another charge",
        charged=True,
    )


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
