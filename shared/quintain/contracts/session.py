"""Messages of sessions and their budgets: the operations of ``protocol.md`` §4."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from quintain.contracts.invoke import NO_TOKENS, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.strings import Id, RequestId, TargetName

#: AgentV's default, kept: what a session may call where nobody said.
DEFAULT_MAX_CALLS = 50

Count = Annotated[int, Field(ge=0)]


class SessionState(StrEnum):
    """``paused`` refuses new calls for now, ``closed`` for ever."""

    OPEN = "open"
    PAUSED = "paused"
    CLOSED = "closed"


class GetInfo(Message):
    """What am I, and what is left? ``per_target``: and what went to which target?"""

    per_target: bool = False


class TargetUsage(Message):
    """What a session and its children spent on one target. ``counted`` calls came with the tokens they took."""

    calls: int = 0
    counted: int = 0
    token_usage: TokenUsage = NO_TOKENS


class Info(Message):
    """A session and its counters. ``callCount`` = reserved + running + committed + in doubt, its children's too.

    ``now`` and ``expiresAt`` are milliseconds since the epoch on the metadata service's clock. ``perTarget`` is there
    where it was asked for.
    """

    session_id: str
    target_name: str
    max_calls: int
    call_count: int
    available_targets: list[str]
    reserved: int = 0
    running: int = 0
    committed: int = 0
    refunded: int = 0
    in_doubt: int = 0
    token_usage: TokenUsage
    expires_at: int | None = None
    state: SessionState
    label: str | None = None
    parent_id: str | None = None
    per_target: dict[str, TargetUsage] | None = None
    now: int


class OpenSession(Message):
    """Open a session; opened with a session's token it is that session's child, and may only narrow."""

    default_target: TargetName
    max_calls: Count | None = None
    allowed_targets: list[TargetName] | None = None
    expires_in_seconds: Annotated[float, Field(gt=0)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0, le=1500)] | None = None
    store_replies: bool | None = None
    label: Id | None = None


class SessionOpened(Message):
    """The new session; the token is shown this once."""

    session_id: str
    token: str
    parent_id: str | None = None


class AmendSession(Message):
    """Change a session's limit or state; usage is never reset, and a limit below it becomes it."""

    session_id: Id
    max_calls: Count | None = None
    state: SessionState | None = None


class CloseSession(Message):
    """Close the session that asks, and its children, for ever: whoever holds its token may give it up."""


class ReserveCalls(Message):
    """Reserve these calls, all or none, until the deadline (milliseconds since the epoch)."""

    request_ids: Annotated[list[RequestId], Field(min_length=0, max_length=10_000)]
    deadline: int


class CallsReserved(Message):
    """How many are newly reserved; ids already known cost nothing."""

    granted: int


class ReleaseCalls(Message):
    """Give back reservations."""

    request_ids: Annotated[list[RequestId], Field(max_length=10_000)]


class CallsReleased(Message):
    """How many reservations were given back."""

    released: int


class CancelCalls(Message):
    """Take these calls back: what waits is refused uncharged, what runs is aborted."""

    request_ids: Annotated[list[RequestId], Field(max_length=10_000)]


class CallsCancelled(Message):
    """How many were taken back; a call that has ended, or that another delivery waits for, is not."""

    cancelled: int


class ListSessions(Message):
    """The sessions, newest first, a page at a time."""

    cursor: Id | None = None
    state: SessionState | None = None


class SessionList(Message):
    """One page of sessions; ``cursor`` asks for the next."""

    sessions: list[Info]
    cursor: str | None = None


class ShowSession(Message):
    """One session, as info."""

    session_id: Id
