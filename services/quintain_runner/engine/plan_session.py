"""The session that the calls of a plan are charged to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from quintain.client.client import Client
from quintain.contracts.session import TargetUsage

#: Reads the usage of the run's session by target; returns None if it is not available.
ReadSpending = Callable[[], Awaitable[Mapping[str, TargetUsage] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """What a plan needs of its session.

    ``is_changed`` says whether an earlier plan had another identity: a changed plan has a budget of its own.
    ``most_calls`` is the most calls that this command can need, and 0 if it has nothing to do.
    """

    is_changed: bool
    most_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSession:
    """The session of a plan.

    ``session_id`` is None if there is nothing to call: then ``client`` is that of another session, which counts
    nothing. ``calls_of_earlier_sessions`` were charged to other sessions of the run, ``calls_of_earlier_plans`` of them
    before the plan changed. ``is_bounded`` says that the session's limit does not follow from what the plan needs.

    ``ended_usage`` is the usage by target of a session that this one replaces, by its id. ``read_final_spending`` reads
    the usage by target after the run, and ``read_current_spending`` during it; without them the cost is unknown.
    """

    client: Client
    session_id: str | None
    calls_location: str = "calls.jsonl"
    calls_of_earlier_sessions: int = 0
    calls_of_earlier_plans: int = 0
    is_bounded: bool = True
    ended_usage: Mapping[str, Mapping[str, TargetUsage]] = field(default_factory=dict)
    read_final_spending: ReadSpending | None = None
    read_current_spending: ReadSpending | None = None


#: Gives the session of a plan: the one so far, or a new one.
OpenPlanSession = Callable[[SessionRequest], Awaitable[PlanSession]]
