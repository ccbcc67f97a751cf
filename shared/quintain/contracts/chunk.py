"""What a caller may get before the reply: chunks of the answer, and progress (``protocol.md`` §3)."""

from __future__ import annotations

from typing import Any, Literal

from quintain.contracts.invoke import Reasoning
from quintain.contracts.message import Message


class ToolCallChunk(Message):
    """A piece of a tool call on its way; ``index`` counts the calls of an answer, and ``arguments`` is the next text.

    The first piece of a call has its ``id`` and ``name``.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class ReasoningChunk(Reasoning):
    """A piece of the model's reasoning on its way; ``index`` counts the pieces of the result's reasoning.

    ``text`` is the next text of that piece. Its ``signature``, or ``redacted``, comes once and is whole.
    """

    index: int


class Chunk(Message):
    """A piece of an answer, sent to callers that accept chunks: of its text, its reasoning or a tool call.

    ``seq`` counts from 0 within an ``attempt``; a higher attempt voids all chunks before it. ``events`` are those of
    the stream that answers an `ApiRequest`, in the words of its API.
    """

    attempt: int
    seq: int
    delta: str
    tool_call: ToolCallChunk | None = None
    reasoning: ReasoningChunk | None = None
    events: list[dict[str, Any]] | None = None


class Progress(Message):
    """A notification that a call is running, sent to callers that accept progress; ``attempt`` counts from 1."""

    state: Literal["running"] = "running"
    attempt: int
    elapsed_ms: int
