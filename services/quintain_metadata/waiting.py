"""The admits that wait for a decision: which of them the ledger can decide now, and an index by what they wait for.

An admit that is not found to be ready would be decided in the same way, so that its service need not ask about it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quintain.contracts.ledger import Admission, Admit
from quintain.contracts.session import SessionState
from quintain_metadata.ledger.call_rows import CallKey, read_capacities
from quintain_metadata.ledger.decisions import DUPLICATE_WAIT_MS, DeferReason, Deferred
from quintain_metadata.store.base import Lookup, Moment, SqlProgram


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """What the admits of one service wait for.

    ``joined`` are the calls that their admits join, for other callers, ``redelivered`` those whose own messages were
    delivered again, and ``new`` those that no attempt runs; ``sessions`` the sessions of all, and ``incarnations`` the
    workers whose leases are waited for.
    """

    joined: Sequence[CallKey] = ()
    redelivered: Sequence[CallKey] = ()
    new: Sequence[CallKey] = ()
    sessions: Sequence[str] = ()
    incarnations: Sequence[str] = ()


@dataclass(slots=True)
class Ready:
    """What need not be waited for any longer. ``now`` is the store's clock, in milliseconds since the epoch.

    ``closed_sessions`` may call nothing any more, ``paused_sessions`` no new call.
    """

    now: int
    calls: set[CallKey] = field(default_factory=set)
    closed_sessions: set[str] = field(default_factory=set)
    paused_sessions: set[str] = field(default_factory=set)
    incarnations: set[str] = field(default_factory=set)


def read_ready(moment: Moment, waited_for: WaitedFor) -> SqlProgram[Ready]:
    """Return what can be decided now, and record that the joined calls are waited for."""
    ready = Ready(moment.now)
    if waited_for.joined:
        yield Lookup(
            f"UPDATE call SET joined_until = ? FROM wanted WHERE {_IS_WANTED} AND call.state = 'running'"
            " AND call.cancelled_at IS NULL AND call.joined_until < ?",
            waited_for.joined,
            (moment.now + DUPLICATE_WAIT_MS, moment.now + DUPLICATE_WAIT_MS // 2),
        )
    # Joined calls that no worker with a valid lease runs, and new ones that were cancelled, or answered through another
    # attempt.
    ended = yield Lookup(
        f"SELECT call.session_id, call.request_id FROM wanted JOIN call ON {_IS_WANTED}"
        " LEFT JOIN worker ON worker.incarnation = call.incarnation"
        " WHERE call.state <> 'running' OR worker.lease_until IS NULL OR worker.lease_until <= ?",
        [*waited_for.joined, *waited_for.redelivered],
        (moment.lease_cutoff,),
    )
    answered = yield Lookup(
        f"SELECT call.session_id, call.request_id FROM wanted JOIN call ON {_IS_WANTED}"
        " WHERE call.state IN ('committed', 'inDoubt') OR (call.state <> 'running' AND call.cancelled_at IS NOT NULL)",
        waited_for.new,
    )
    ready.calls = {(row[0], row[1]) for row in (*ended, *answered)}
    for session_id, state in (yield Lookup(_SESSIONS_SQL, [(each,) for each in waited_for.sessions], (moment.now,))):
        (ready.paused_sessions if state == SessionState.PAUSED else ready.closed_sessions).add(session_id)
    renewed = yield Lookup(
        "SELECT key1 FROM wanted JOIN worker ON worker.incarnation = wanted.key1 WHERE lease_until > ?",
        [(each,) for each in waited_for.incarnations],
        (moment.lease_cutoff,),
    )
    ready.incarnations = {row[0] for row in renewed}
    return ready


_IS_WANTED = "call.session_id = wanted.key1 AND call.request_id = wanted.key2"

#: The sessions that are not open, or have an ancestor that is not.
_SESSIONS_SQL = (
    ", lineage (id, member) AS (SELECT key1, key1 FROM wanted"
    " UNION SELECT lineage.id, session.parent_id FROM lineage JOIN session ON session.id = lineage.member"
    " WHERE session.parent_id IS NOT NULL)"
    " SELECT lineage.id, session.state FROM lineage JOIN session ON session.id = lineage.member"
    " WHERE session.state <> 'open' OR session.expires_at <= ?"
)


def read_capacity(
    moment: Moment, target: str, attempts: Mapping[str, CallKey]
) -> SqlProgram[tuple[int | None, set[str]]]:
    """Return the target's free capacity (None: no limit), and which attempts are ended: granted before, or void.

    ``attempts`` are those that wait, in their order, with their calls; as many as have room are looked up.
    """
    capacity = (yield from read_capacities(moment, [target])).get(target)
    first_ids = list(attempts)[:capacity]
    rows = yield Lookup(
        "SELECT id FROM wanted JOIN attempt ON attempt.id = wanted.key1",
        [(attempt_id,) for attempt_id in first_ids],
    )
    held = yield Lookup(
        f"SELECT call.attempt_id FROM wanted JOIN call ON {_IS_WANTED}",
        [attempts[attempt_id] for attempt_id in first_ids],
    )
    return capacity, {row[0] for row in (*rows, *held)}.intersection(first_ids)


#: Begins the name of a line that waits for the money of a session; no target's name has it.
MONEY_PREFIX = "$"

Key = TypeVar("Key")

#: Sends an answer to the worker that asked: the decided admissions, and the attempt ids that must wait. Two that are
#: equal send to the same worker.
SendAnswer = Callable[[list[Admission], list[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class WaitingAdmit:
    """An admit that waits for a decision."""

    admit: Admit
    incarnation: str
    send_answer: SendAnswer
    deferred: Deferred
    #: When its worker last sent the admit, in the loop's seconds.
    last_requested_at: float
    #: Those that came earlier have smaller numbers.
    number: int = 0

    @property
    def call_key(self) -> CallKey:
        """The key of the call it wants to run: session id and request id."""
        return self.deferred.session_id, self.deferred.request_id

    @property
    def joins_for_caller(self) -> bool:
        """Whether it joins a running call for another caller, and not because the call's message came again."""
        return self.deferred.is_duplicate and not self.admit.redelivered

    @property
    def line(self) -> tuple[str, bool] | None:
        """The line in which it waits: for what, and whether it is a new call; None where in none.

        It waits for its target, or for the money of a session.
        """
        deferred = self.deferred
        if deferred.payer is not None:
            return f"{MONEY_PREFIX}{deferred.payer}", not deferred.is_takeover
        return (deferred.target, not deferred.is_takeover) if deferred.reason is DeferReason.TARGET else None

    def is_ready(self, ready: Ready) -> bool:
        """Whether the ledger would decide otherwise than before, but for its target's free capacity."""
        deferred = self.deferred
        if self.call_key in ready.calls or deferred.session_id in ready.closed_sessions:
            return True
        if deferred.is_duplicate:
            return False
        if deferred.deadline <= ready.now or (
            deferred.session_id in ready.paused_sessions and not deferred.is_takeover
        ):
            return True
        if deferred.reason is DeferReason.RETRY:
            return deferred.not_before <= ready.now
        return deferred.reason is DeferReason.LEASE and self.incarnation in ready.incarnations


class WaitingAdmits:
    """The admits of one service that wait, by attempt, by call and by target.

    At a target take-overs come before new calls, and among each kind the first to arrive is the first.
    """

    def __init__(self) -> None:
        #: By attempt; only this class changes it.
        self.admits: dict[str, WaitingAdmit] = {}
        self._by_call: dict[CallKey, dict[str, None]] = {}
        self._lines: dict[tuple[str, bool], dict[str, None]] = {}
        #: When those between two tries may begin the next one, in milliseconds since the epoch; a heap.
        self._tries: list[tuple[int, str]] = []

    def get(self, attempt_id: str) -> WaitingAdmit | None:
        """Return the waiting admit of this attempt, or None."""
        return self.admits.get(attempt_id)

    def put(self, waiting: WaitingAdmit) -> None:
        """Add an admit, or replace the one of its attempt, which keeps its place in its line."""
        attempt_id = waiting.admit.attempt_id
        before = self.admits.get(attempt_id)
        if before is not None and before.line != waiting.line:
            self._leave_line(before)
        self.admits[attempt_id] = waiting
        self._by_call.setdefault(waiting.call_key, {})[attempt_id] = None
        if waiting.line is not None:
            self._lines.setdefault(waiting.line, {})[attempt_id] = None
        if waiting.deferred.reason is DeferReason.RETRY:
            heapq.heappush(self._tries, (waiting.deferred.not_before, attempt_id))

    def remove(self, attempt_id: str) -> WaitingAdmit | None:
        """Remove the admit of this attempt and return it; None where none waits."""
        waiting = self.admits.pop(attempt_id, None)
        if waiting is None:
            return None
        self._leave_line(waiting)
        _discard(self._by_call, waiting.call_key, attempt_id)
        return waiting

    def next_try_at(self) -> float:
        """Return when the first of those between two tries may begin, in milliseconds since the epoch."""
        return self._tries[0][0] if self._tries else math.inf

    def take_tries(self, now: int) -> list[WaitingAdmit]:
        """Return those whose next try may begin by now."""
        found = list[WaitingAdmit]()
        while self._tries and self._tries[0][0] <= now:
            waiting = self.admits.get(heapq.heappop(self._tries)[1])
            if waiting is not None and waiting.deferred.reason is DeferReason.RETRY:
                found.append(waiting)
        return found

    def of_calls(self, keys: Iterable[CallKey]) -> list[WaitingAdmit]:
        """Return the admits of these calls."""
        return [self.admits[attempt_id] for key in keys for attempt_id in self._by_call.get(key, ())]

    def count_duplicates(self, key: CallKey, *, but: str) -> int:
        """Return how many admits join this call for a caller, without the attempt ``but``."""
        return sum(waiting.joins_for_caller and waiting.admit.attempt_id != but for waiting in self.of_calls([key]))

    def targets(self) -> list[str]:
        """Return the targets for whose capacity admits wait."""
        return [name for name in dict.fromkeys(name for name, _ in self._lines) if not name.startswith(MONEY_PREFIX)]

    def for_money(self) -> list[WaitingAdmit]:
        """Return those that wait for money: take-overs, then new calls in the order in which they came."""
        lines = [members for (name, _), members in self._lines.items() if name.startswith(MONEY_PREFIX)]
        found = [self.admits[attempt_id] for members in lines for attempt_id in members]
        return sorted(found, key=lambda waiting: (not waiting.deferred.is_takeover, waiting.number))

    def awaited_payers(self) -> dict[str, int]:
        """Return the sessions for whose money admits wait, each with the number of the first of them."""
        first = dict[str, int]()
        for (name, _), members in self._lines.items():
            if name.startswith(MONEY_PREFIX):
                payer, number = name.removeprefix(MONEY_PREFIX), min(self.admits[each].number for each in members)
                first[payer] = min(number, first.get(payer, number))
        return first

    def is_awaited(self, target: str) -> bool:
        """Whether an admit waits for this target's capacity."""
        return (target, True) in self._lines or (target, False) in self._lines

    def first_at(self, target: str, count: int) -> list[WaitingAdmit]:
        """Return the first so many that wait for this target's capacity: take-overs, then new calls."""
        lines = (self._lines.get((target, is_new), {}) for is_new in (False, True))
        return [self.admits[attempt_id] for attempt_id in itertools.islice(itertools.chain(*lines), count)]

    def requested_before(self, time: float) -> list[WaitingAdmit]:
        """Return the admits that their workers have not sent since this time, in the loop's seconds."""
        return [waiting for waiting in self if waiting.last_requested_at < time]

    def ready(self, ready: Ready) -> list[WaitingAdmit]:
        """Return the admits that can be decided now, take-overs among them first."""
        found = [waiting for waiting in self if waiting.is_ready(ready)]
        return sorted(found, key=lambda waiting: not waiting.deferred.is_duplicate)

    def waited_for(self) -> WaitedFor:
        """Return what the admits wait for."""
        return WaitedFor(
            joined=_unique(waiting.call_key for waiting in self if waiting.joins_for_caller),
            redelivered=_unique(
                waiting.call_key for waiting in self if waiting.deferred.is_duplicate and waiting.admit.redelivered
            ),
            new=_unique(waiting.call_key for waiting in self if not waiting.deferred.is_duplicate),
            sessions=_unique(waiting.deferred.session_id for waiting in self),
            incarnations=_unique(
                waiting.incarnation for waiting in self if waiting.deferred.reason is DeferReason.LEASE
            ),
        )

    def __iter__(self) -> Iterator[WaitingAdmit]:
        return iter(self.admits.values())

    def _leave_line(self, waiting: WaitingAdmit) -> None:
        if waiting.line is not None:
            _discard(self._lines, waiting.line, waiting.admit.attempt_id)


def _discard(index: dict[Key, dict[str, None]], key: Key, attempt_id: str) -> None:
    """Remove an attempt from an index, and its entry with its last attempt."""
    members = index[key]
    del members[attempt_id]
    if not members:
        del index[key]


def _unique(items: Iterable[Key]) -> list[Key]:
    return list(dict.fromkeys(items))
