"""Messages of sessions and their budgets, and of administration: the operations of ``docs/protocol/operations.md``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StrictBool

from quintain.contracts.agents import ConversationId
from quintain.contracts.invoke import NO_TOKENS, TokenUsage, Unsupported
from quintain.contracts.ledger import DrainState, Milliseconds
from quintain.contracts.message import BodyBytes, Message, StrictMessage
from quintain.contracts.money import CostTerms, HeldTries, MaxCostUsd, NoLimit, WarnAt
from quintain.contracts.values import MAX_DEADLINE_SECONDS, Count, GraderId, Id, RequestId, TargetName

#: Default ``max_calls`` of a session; the same as AgentV's.
DEFAULT_MAX_CALLS = 50

#: Default ``max_calls`` of the child session that an agent under test gets.
AGENT_MAX_CALLS = 10


class SessionState(StrEnum):
    """The state of a session: ``paused`` refuses new calls until it is opened again, ``closed`` permanently."""

    OPEN = "open"
    PAUSED = "paused"
    CLOSED = "closed"


class Priority(StrEnum):
    """How urgent the calls of a session are where they wait for a quota, the most urgent first."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """Its place in this order; the most urgent has 0."""
        return _PRIORITY_RANKS[self]


_PRIORITY_RANKS = {priority: rank for rank, priority in enumerate(Priority)}

#: A session's weight among others of its priority, where they share a quota; and that of one that names none.
MIN_WEIGHT, DEFAULT_WEIGHT, MAX_WEIGHT = 1, 10, 100

Weight = Annotated[int, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT)]

#: How many request ids `GetInfo` may name.
MAX_ANSWERED_IDS = 1000


class GetInfo(Message):
    """Request a session's information; with ``usage`` also what its calls took, by target and grader.

    ``answered`` are request ids of this session whose answers the asker has: the reply waits up to 1 s until none of
    these calls counts as running; ``settled``: none of the session's and its children's.
    """

    usage: bool = False
    settled: bool = False
    answered: Annotated[list[RequestId], Field(max_length=MAX_ANSWERED_IDS)] | None = None


class CostUsage(Message):
    """What a session and its children cost, in US dollars: at most ``spent`` + ``held`` + ``reserved`` + ``excess``.

    ``held`` is reserved for tries whose bill is unknown, ``reserved`` for tries that run. ``excess`` is what providers
    reported beyond what was reserved. ``unknown`` charged tries are in none of these: their price is not known. For
    ``estimated`` tries the reservation was an estimate, so that a limit is soft: they may cost more.
    ``left_usd`` is what is neither spent nor held of the limits of the session and of its ancestors, the least of them,
    and ``free_usd`` what of that is not reserved; None where nothing limits its calls.
    """

    spent_usd: float = 0.0
    held_usd: float = 0.0
    reserved_usd: float = 0.0
    excess_usd: float = 0.0
    unknown: int = 0
    estimated: int = 0
    left_usd: float | None = None
    free_usd: float | None = None

    @property
    def known_usd(self) -> float:
        """What is known to be billed."""
        return _sum_usd(self.spent_usd, self.excess_usd)

    @property
    def most_usd(self) -> float:
        """What it is at most, but for tries of unknown cost."""
        return _sum_usd(self.spent_usd, self.excess_usd, self.held_usd, self.reserved_usd)

    def __add__(self, other: CostUsage) -> CostUsage:
        return CostUsage(
            spent_usd=_sum_usd(self.spent_usd, other.spent_usd),
            held_usd=_sum_usd(self.held_usd, other.held_usd),
            reserved_usd=_sum_usd(self.reserved_usd, other.reserved_usd),
            excess_usd=_sum_usd(self.excess_usd, other.excess_usd),
            unknown=self.unknown + other.unknown,
        )


def is_at(cost: CostUsage, limit_usd: float, part: float | None) -> bool:
    """Whether this part of a limit in US dollars is spent or held; ``part`` is None where nobody asks."""
    return part is not None and _sum_usd(cost.known_usd, cost.held_usd) >= limit_usd * part


def _sum_usd(*amounts: float) -> float:
    """Return a sum of amounts in US dollars, exact to a picodollar."""
    return round(sum(amounts), 12)


class Usage(Message):
    """What some calls took: ``counted`` of the charged ``calls`` reported their tokens.

    ``tries`` requests were sent to providers; ``unproven_tries`` of them failed, or were lost, and may be billed too.
    """

    calls: int = 0
    counted: int = 0
    tries: int = 0
    unproven_tries: int = 0
    token_usage: TokenUsage = NO_TOKENS
    cost: CostUsage = CostUsage()

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            calls=self.calls + other.calls,
            counted=self.counted + other.counted,
            tries=self.tries + other.tries,
            unproven_tries=self.unproven_tries + other.unproven_tries,
            token_usage=self.token_usage + other.token_usage,
            cost=self.cost + other.cost,
        )


#: Stands in the place of a grader's name for the calls that agents make themselves, within calls that are no grader's.
AGENTS: Final = "agents"


class UsageLine(Usage):
    """What the calls of one target took that one grader made, or that are no grader's.

    ``agent`` is the target whose agent made them for its answers, if one did.
    """

    target: str
    grader: str | None = None
    agent: str | None = None


class Info(Message):
    """A session and its counters, which include its children's.

    ``call_count`` = reserved + running + committed + in doubt. ``charged_faults`` are the committed calls that ended
    with a fault, without those that the provider answered (``rejected``, ``reply_too_large``).
    ``now`` and ``expires_at`` are milliseconds since the epoch on the metadata service's clock. ``usage`` is set if it
    was requested, and ``held`` with it where money is held. ``tries`` requests were sent to providers;
    ``unproven_tries`` of them failed, or were lost, and may be billed too.
    ``allowed_targets`` are those that the session may call, registered or not; None if it may call all.
    ``target_fingerprints`` are those that workers registered, of the targets that the session may call.
    ``different_since`` are the times since when the live workers of some of them have reported different ones.
    ``unsupported`` is set if it is ``ignore``, and ``max_body_bytes`` if the session was opened with it.
    ``group_slots`` are the targets with a live worker, each with the slots that one of its workers has.
    ``target_timeouts`` are the targets whose calls have a time limit of their own, in seconds. ``target_costs`` are
    what calls of the targets that workers serve can cost at most. ``one_question_targets`` keep no history, and take no
    turns of a conversation.
    ``max_cost_usd`` is the session's own limit in money; None where it has none.
    ``quotas`` are the targets with a quota, each with its name. ``wrong_bounds`` are the targets that a limit in money
    admits nothing of, because a try cost so many US dollars more than was reserved for it.
    ``weight`` and ``priority`` are those in force: a child has at most its parent's.
    """

    session_id: str
    target_name: str
    max_calls: int
    call_count: int
    available_targets: list[str]
    allowed_targets: list[str] | None = None
    reserved: int = 0
    running: int = 0
    committed: int = 0
    refunded: int = 0
    in_doubt: int = 0
    charged_faults: int = 0
    tries: int = 0
    unproven_tries: int = 0
    token_usage: TokenUsage
    max_cost_usd: float | None = None
    cost: CostUsage | None = None
    expires_at: int | None = None
    state: SessionState
    label: str | None = None
    parent_id: str | None = None
    usage: list[UsageLine] | None = None
    held: list[HeldTries] | None = None
    target_fingerprints: dict[str, str] | None = None
    different_since: dict[str, int] | None = None
    unsupported: Unsupported | None = None
    max_body_bytes: int | None = None
    group_slots: dict[str, Count] | None = None
    target_timeouts: dict[str, float] | None = None
    one_question_targets: list[str] | None = None
    target_costs: dict[str, CostTerms] | None = None
    quotas: dict[str, str] | None = None
    wrong_bounds: dict[str, float] | None = None
    weight: int = DEFAULT_WEIGHT
    priority: Priority = Priority.NORMAL
    now: int


class OpenSession(StrictMessage):
    """Open a session. With a session's token it becomes that session's child, and can only narrow its permissions.

    ``reserve`` charges that many calls of a child to its parent at once, or all of its ``max_calls`` (``True``): nobody
    else can use them until the child is closed or expires. Those that were not used are given back then.
    ``unsupported`` is what happens to settings that a target's provider cannot honour, where the request does not say
    it: by default the call is refused. A child has its parent's, unless it says otherwise.
    ``max_body_bytes`` is the size of the largest request, 1 MiB by default, and of the largest reply where that is more
    than 8 MiB. A child has at most its parent's. ``max_cost_usd`` is the most that its calls may cost, in US dollars; a
    child stays within its parent's too. ``warn_at`` is the part of it at which an event says so, when so much is spent
    or held.
    ``weight`` and ``priority`` are its share of the quotas of the targets that it calls (``docs/limits.md``): 10 and
    ``normal`` by default. A child has its parent's, and may have less. ``grader`` is whose calls are made under it, by
    which their usage is told. A child has its parent's.
    """

    default_target: TargetName
    max_calls: Count | None = None
    max_cost_usd: MaxCostUsd | None = None
    warn_at: WarnAt | None = None
    allowed_targets: list[TargetName] | None = None
    expires_in_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0, le=MAX_DEADLINE_SECONDS)] | None = None
    store_replies: bool | None = None
    unsupported: Unsupported | None = None
    max_body_bytes: BodyBytes | None = None
    label: Id | None = None
    grader: GraderId | None = None
    reserve: StrictBool | Count | None = None
    weight: Weight | None = None
    priority: Priority | None = None


class SessionOpened(Message):
    """A new session; its token is never shown again."""

    session_id: str
    token: str
    parent_id: str | None = None


class AmendSession(StrictMessage):
    """Change a session's limits or state; usage is never reset, and a limit below the usage is raised to it.

    ``max_cost_usd`` is a limit, or ``none`` to take it away.
    """

    session_id: Id
    max_calls: Count | None = None
    max_cost_usd: MaxCostUsd | NoLimit | None = None
    state: SessionState | None = None
    max_body_bytes: BodyBytes | None = None
    weight: Weight | None = None
    priority: Priority | None = None


class CloseSession(Message):
    """Close the session of the request's token, and its children, permanently."""


class CloseChildren(Message):
    """Close all children of the request's session permanently; the session itself stays as it is."""


class ReserveCalls(Message):
    """Reserve calls, all or none, until the deadline (milliseconds since the epoch)."""

    request_ids: Annotated[list[RequestId], Field(min_length=0, max_length=10_000)]
    deadline: int


class CallsReserved(Message):
    """The number of new reservations; ids that are already known cost nothing."""

    granted: int


class ReleaseCalls(Message):
    """Release reservations."""

    request_ids: Annotated[list[RequestId], Field(max_length=10_000)]


class CallsReleased(Message):
    """The number of released reservations."""

    released: int


class CancelCalls(Message):
    """Cancel calls: waiting ones are refused uncharged, running ones are aborted.

    The workers that hold the conversations of ``conversation_ids`` end them, unless a turn runs.
    """

    request_ids: Annotated[list[RequestId], Field(max_length=10_000)] = Field(default_factory=list)
    conversation_ids: Annotated[list[ConversationId], Field(max_length=10_000)] | None = None


class CallsCancelled(Message):
    """The number of cancelled calls; a call that has ended, or that another delivery waits for, is not cancelled."""

    cancelled: int


class ListSessions(Message):
    """List sessions, newest first, one page at a time."""

    cursor: Id | None = None
    state: SessionState | None = None


class SessionList(Message):
    """One page of sessions; ``cursor`` requests the next page."""

    sessions: list[Info]
    cursor: str | None = None


class ShowSession(Message):
    """Request one session's information as an administrator."""

    session_id: Id


#: Maximum duration of one pause, in seconds.
MAX_PAUSE_SECONDS = 24 * 3600


class PauseTarget(Message):
    """Pause a target for ``for_seconds`` from now; a longer pause that is already in effect stays."""

    target: Id
    for_seconds: Annotated[float, Field(gt=0, le=MAX_PAUSE_SECONDS)]


class ResumeTarget(Message):
    """End a target's pause, regardless of who requested it."""

    target: Id


class TargetPause(Message):
    """Until when a target is paused, if it is; ``now`` is the same clock, in milliseconds since the epoch."""

    target: str
    paused_until: Milliseconds | None = None
    now: Milliseconds


class ListWorkers(Message):
    """List the workers registered in the ledger."""


class DrainWorker(Message):
    """Drain a worker: it takes no more calls, finishes the running ones, and exits."""

    worker_id: Id


class RegisteredWorker(Message):
    """One worker process, live until ``lease_until`` (milliseconds since the epoch); ``running`` counts its calls."""

    worker_id: str
    incarnation: str
    lease_until: Milliseconds
    drain: DrainState
    running: int = 0


class WorkerList(Message):
    """The live workers, and those of the last day that were asked to drain, sorted."""

    workers: list[RegisteredWorker]
    now: Milliseconds
