"""A piece of a tool call on its way: what a chunk holds besides text."""

from __future__ import annotations

from quintain.contracts.message import Message


class ToolCallChunk(Message):
    """A piece of a tool call on its way; ``index`` counts the calls of an answer, and ``arguments`` is the next text.

    The first piece of a call has its ``id`` and ``name``.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
