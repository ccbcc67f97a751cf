"""What an evaluator can ask, and an administrator, whichever way it goes: over the bus, or over HTTP.

`quintain.connect` gives an `Evaluator`; tests/conformance/test_clients.py holds both ways to one promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from quintain.client.client import DEFAULT_DEADLINE_SECONDS, BatchItem
from quintain.contracts import metadata
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, Result

#: One item of a batch: a request, its fields, or a question alone.
Asked = InvokeRequest | Mapping[str, object] | str


class Evaluator(Protocol):
    """One session's right to call.

    Every call ends with a `Result` or a typed `Fault`; a `BusError` says that it could not be carried. Nothing is
    asked again behind the caller's back: that is what a ``request_id`` of one's own is for.
    """

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

    async def invoke_batch(
        self, requests: Sequence[Asked], *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> list[BatchItem]:
        """Ask all at once, answers in order. The budget is reserved all or nothing (`BudgetExhausted`); after
        that a failing item never loses the others, and what an item did not use is given back."""

    async def get_info(self, *, per_target: bool = False) -> metadata.Info:
        """The session, its counters and the targets it may call; and what went to which, where that is asked for."""

    async def open_child(self, ask: metadata.OpenSession) -> metadata.SessionOpened:
        """Open a session that may only narrow this one and draws on its budget."""


class Administrator(Protocol):
    """The right to open sessions. Every method raises a `Fault`, or a `BusError`."""

    async def open(self, ask: metadata.OpenSession) -> metadata.SessionOpened:
        """Open a session; its token is in the answer and nowhere else."""

    async def amend(self, ask: metadata.AmendSession) -> metadata.Info:
        """Change a session's limit or state."""

    async def list(self, ask: metadata.ListSessions) -> metadata.SessionList:
        """One page of sessions, newest first."""

    async def show(self, session_id: str) -> metadata.Info:
        """One session and its counters."""
