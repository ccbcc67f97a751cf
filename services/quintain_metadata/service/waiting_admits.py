"""The admits that wait for a decision, indexed by what they wait for. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from quintain.contracts.ledger import Admission, Admit
from quintain_metadata.rules.calls import DeferReason, Deferred
from quintain_metadata.rules.waiting import CallKey, Ready, WaitedFor

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

    @property
    def call_key(self) -> CallKey:
        """The key of the call it wants to run: session id and request id."""
        return self.deferred.session_id, self.deferred.request_id

    @property
    def line(self) -> tuple[str, bool] | None:
        """The line in which it waits for its target: the target, and whether it is a new call; None where in none."""
        deferred = self.deferred
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
        return deferred.reason is DeferReason.LEASE and self.incarnation in ready.incarnations


class WaitingAdmits:
    """The admits of one service that wait, by attempt, by call and by target.

    At a target take-overs come before new calls, and among each kind the first to arrive is the first.
    """

    def __init__(self) -> None:
        self._admits: dict[str, WaitingAdmit] = {}
        self._by_call: dict[CallKey, dict[str, None]] = {}
        self._lines: dict[tuple[str, bool], dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._admits)

    def get(self, attempt_id: str) -> WaitingAdmit | None:
        """Return the waiting admit of this attempt, or None."""
        return self._admits.get(attempt_id)

    def put(self, waiting: WaitingAdmit) -> None:
        """Add an admit, or replace the one of its attempt, which keeps its place in its line."""
        attempt_id = waiting.admit.attempt_id
        before = self._admits.get(attempt_id)
        if before is not None and before.line != waiting.line:
            self._leave_line(before)
        self._admits[attempt_id] = waiting
        self._by_call.setdefault(waiting.call_key, {})[attempt_id] = None
        if waiting.line is not None:
            self._lines.setdefault(waiting.line, {})[attempt_id] = None

    def remove(self, attempt_id: str) -> WaitingAdmit | None:
        """Remove the admit of this attempt and return it; None where none waits."""
        waiting = self._admits.pop(attempt_id, None)
        if waiting is None:
            return None
        self._leave_line(waiting)
        _discard(self._by_call, waiting.call_key, attempt_id)
        return waiting

    def of_calls(self, keys: Iterable[CallKey]) -> list[WaitingAdmit]:
        """Return the admits of these calls."""
        return [self._admits[attempt_id] for key in keys for attempt_id in self._by_call.get(key, ())]

    def count_duplicates(self, key: CallKey, *, but: str) -> int:
        """Return how many admits join this call, without the attempt ``but``."""
        return sum(
            waiting.deferred.is_duplicate and waiting.admit.attempt_id != but for waiting in self.of_calls([key])
        )

    def targets(self) -> list[str]:
        """Return the targets for whose capacity admits wait."""
        return list(dict.fromkeys(target for target, _ in self._lines))

    def is_awaited(self, target: str) -> bool:
        """Whether an admit waits for this target's capacity."""
        return (target, True) in self._lines or (target, False) in self._lines

    def first_at(self, target: str, count: int) -> list[WaitingAdmit]:
        """Return the first so many that wait for this target's capacity: take-overs, then new calls."""
        lines = (self._lines.get((target, is_new), {}) for is_new in (False, True))
        return [self._admits[attempt_id] for attempt_id in itertools.islice(itertools.chain(*lines), count)]

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
            joined=_unique(waiting.call_key for waiting in self if waiting.deferred.is_duplicate),
            new=_unique(waiting.call_key for waiting in self if not waiting.deferred.is_duplicate),
            sessions=_unique(waiting.deferred.session_id for waiting in self),
            incarnations=_unique(
                waiting.incarnation for waiting in self if waiting.deferred.reason is DeferReason.LEASE
            ),
        )

    def __iter__(self) -> Iterator[WaitingAdmit]:
        return iter(self._admits.values())

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
