"""Messages between workers and the metadata service on ``quintain.ledger``: register, heartbeat, admit, settle.

These are not part of the public protocol: workers and metadata service must be of one release.

- ``register`` and ``heartbeat`` renew the worker's lease. ``admit`` is idempotent and resent until it is answered: the
  same ``attemptId`` gets the same grant. Items of a batch are answered individually, in one or more replies, as soon
  as each is decided; an item that must wait (another worker holds the call, the target is at its limit) is answered
  when it is admitted.
- ``settle`` is published to a quorum queue with a publisher confirm and has no reply.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from quintain.contracts.invoke import FaultReply, Result, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.strings import Id, RequestId, TargetName, Text

#: A target is called so often at once at most.
MAX_CONCURRENCY = 10_000

#: A moment, in milliseconds since the epoch, as every reader of JSON has whole numbers.
Milliseconds = Annotated[int, Field(ge=0, lt=2**53)]


class TargetCard(Message):
    """What the fleet knows of a target: never a key."""

    name: TargetName
    provider: Text
    model: Text | None = None
    judge_target: TargetName | None = None
    max_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]


class DrainState(StrEnum):
    """How far a worker is with draining, in the order in which it goes; it never goes back."""

    #: Nobody drains it: it is a part of `quintain up` or `quintain run`, or of a release that could not.
    UNSUPPORTED = "unable"
    #: It drains when it is asked.
    SUPPORTED = "able"
    #: An administrator has asked; the worker hears of it with its next heartbeat.
    REQUESTED = "asked"
    #: It takes no more calls, and finishes what it runs.
    DRAINING = "draining"
    #: It runs nothing any more, and ends: its last word.
    DRAINED = "drained"


class Register(Message):
    """A worker starts: these are the targets it serves. ``incarnation`` is random per process. ``sole``: its id is of
    one process at a time, so that whoever had it before has died. ``drain``: whether it drains when it is asked."""

    worker_id: Id
    incarnation: Id
    targets: list[TargetCard]
    sole: bool | None = None
    drain: DrainState | None = None


class CallKey(Message):
    """Which call: its request id within its session."""

    session_id: Id
    request_id: RequestId


class CancelBroadcast(Message):
    """What goes to every worker over ``quintain.cancel``: whoever runs one of these calls aborts it."""

    calls: list[CallKey]


class Heartbeat(Message):
    """The worker lives: renew its lease. ``pauses``: targets whose provider asked for a pause, and for how many
    milliseconds from now. ``drain``: how far it is with what it was asked for."""

    worker_id: Id
    incarnation: Id
    pauses: dict[TargetName, Annotated[int, Field(ge=0)]] | None = None
    drain: DrainState | None = None


class LeaseRenewed(Message):
    """The lease runs on for another `Timings.lease_seconds`. ``known``: this ledger had heard of the worker; ``now`` is
    the store's clock in milliseconds since the epoch.

    ``paused``: the targets that nobody may call now, and until when, by the same clock. ``taken_back``: calls that
    this worker runs and that their caller has cancelled; a fanned-out cancellation may be lost, this is repeated.
    ``drain``: an administrator has asked it to drain; repeated until it says that it does.
    """

    now: Milliseconds
    known: bool = True
    paused: dict[TargetName, Milliseconds] | None = None
    taken_back: list[CallKey] | None = None
    drain: bool | None = None


class Admit(Message):
    """May this attempt spend? ``problem`` is what the worker found wrong with the body: the ledger checks the
    token first and then refuses with it, so that the order of refusals is kept in one place. ``traceparent`` is the
    call's own: a batch carries those of many."""

    token: str
    request_id: RequestId
    attempt_id: Id
    target: Id
    body_sha256: Id
    deadline: int | None = None
    problem: FaultReply | None = None
    traceparent: str | None = None


class AdmitBatch(Message):
    """Several admits of one worker."""

    incarnation: Id
    items: list[Admit]


class Admission(Message):
    """The ledger's word on one attempt: a grant, a stored answer, or a fault; exactly one of the three.

    ``attempt`` is this attempt's number, from 1; ``deadline`` is the call's, in milliseconds since the epoch.
    ``unproven``: an earlier attempt of this call may have been billed, so that this one's proof alone gives nothing
    back.
    """

    attempt_id: Id
    attempt: int = 0
    deadline: Milliseconds = 0
    call_count: int = 0
    max_calls: int = 0
    store_replies: bool = True
    unproven: bool = False
    replay: Result | None = None
    fault: FaultReply | None = None


class AdmitReply(Message):
    """The items decided so far; ``held`` are the attempts that were heard and must wait."""

    items: list[Admission]
    held: list[str] | None = None
    now: Milliseconds


class AttemptOutcome(StrEnum):
    """What became of an attempt, in the worker's words."""

    #: A result: the call is committed.
    RESULT = "result"
    #: A charged fault: the provider worked, and this is its end.
    CHARGED = "charged"
    #: Proven unbilled: the call is given back.
    REFUND = "refund"
    #: It may have reached the provider, and nobody knows what came of it: charged and shown.
    IN_DOUBT = "doubt"
    #: The worker gave up waiting for its grant; should the grant come, it is void.
    NEVER_SENT = "never_sent"


class Settle(Message):
    """What became of one attempt. ``reply`` is kept for replays, ``fault`` for the same question again; ``traceparent``
    is the call's own."""

    session_id: Id
    request_id: RequestId
    attempt_id: Id
    outcome: AttemptOutcome
    reply: Result | None = None
    fault: FaultReply | None = None
    token_usage: TokenUsage | None = None
    traceparent: str | None = None


class SettleBatch(Message):
    """Several settles of one worker."""

    incarnation: Id
    items: list[Settle]
