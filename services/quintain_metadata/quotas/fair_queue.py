"""The calls that wait for one key, in the order in which they start. No I/O, no clock.

Calls that take over a running call come first. Then, within a priority, deficit round robin over sessions by weight;
within a session and target the first to arrive is the first. A higher priority goes first, but the lowest one
that waits gets one start in twenty, and one between them nearly so.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar


class Priority(IntEnum):
    """How urgent the calls of a session are, the most urgent first."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


#: A session's weight among others of its priority.
MIN_WEIGHT, DEFAULT_WEIGHT, MAX_WEIGHT = 1, 10, 100

#: A lower priority that waits gets at least one of so many starts.
FLOOR_STARTS = 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits for its key: ``session_id`` is the root of its session."""

    attempt_id: str
    quota_id: str
    target: str
    session_id: str
    weight: int = DEFAULT_WEIGHT
    priority: Priority = Priority.NORMAL
    is_takeover: bool = False


@dataclass(slots=True)
class _Session:
    """The waiting calls of one session, by target in the order of arrival."""

    weight: int
    deficit: int = 0
    by_target: dict[str, OrderedDict[str, Waiting]] = field(default_factory=dict)

    def first(self, targets: Container[str]) -> Waiting | None:
        """The first call to one of these targets."""
        waiting = next((calls for target, calls in self.by_target.items() if target in targets), None)
        return None if waiting is None else next(iter(waiting.values()))


class _Round:
    """The sessions of one priority, in turn: each gains its weight, and starts a call for the heaviest one's weight."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._weights: Counter[int] = Counter()
        #: How many calls wait for each target.
        self.by_target: Counter[str] = Counter()

    def add(self, waiting: Waiting) -> None:
        session = self._sessions.get(waiting.session_id)
        if session is None:
            session = self._sessions[waiting.session_id] = _Session(waiting.weight)
            self._weights[waiting.weight] += 1
        session.by_target.setdefault(waiting.target, OrderedDict())[waiting.attempt_id] = waiting
        self.by_target[waiting.target] += 1

    def remove(self, waiting: Waiting) -> None:
        _subtract(self.by_target, waiting.target)
        session = self._sessions[waiting.session_id]
        calls = session.by_target[waiting.target]
        del calls[waiting.attempt_id]
        if not calls:
            del session.by_target[waiting.target]
        if not session.by_target:
            del self._sessions[waiting.session_id]
            _subtract(self._weights, session.weight)

    def next(self, targets: Container[str]) -> Waiting | None:
        """The call whose turn it is among those to these targets, which the caller removes."""
        heaviest, without_call = max(self._weights, default=0), 0
        while without_call < len(self._sessions):
            session_id, session = next(iter(self._sessions.items()))
            # To the end of the round.
            self._sessions.move_to_end(session_id)
            waiting = session.first(targets)
            if waiting is None:
                without_call += 1
                continue
            without_call = 0
            session.deficit += session.weight
            if session.deficit >= heaviest:
                session.deficit -= heaviest
                return waiting
        return None


class FairQueue:
    """The waiting calls of one key."""

    def __init__(self) -> None:
        self._takeovers: dict[str, Waiting] = {}
        self._rounds = {priority: _Round() for priority in Priority}
        self._passed_over: Counter[Priority] = Counter()
        #: How many calls wait for each target.
        self.by_target: Counter[str] = Counter()

    def __len__(self) -> int:
        return self.by_target.total()

    def add(self, waiting: Waiting) -> None:
        """Add a call that does not wait yet."""
        self.by_target[waiting.target] += 1
        if waiting.is_takeover:
            self._takeovers[waiting.attempt_id] = waiting
        else:
            self._rounds[waiting.priority].add(waiting)

    def remove(self, waiting: Waiting) -> None:
        """Remove a call that waits."""
        _subtract(self.by_target, waiting.target)
        if waiting.is_takeover:
            del self._takeovers[waiting.attempt_id]
        else:
            self._rounds[waiting.priority].remove(waiting)

    def take(self, targets: Container[str]) -> Waiting | None:
        """Remove and return the next call to one of these targets."""
        waiting = next((each for each in self._takeovers.values() if each.target in targets), None)
        waiting = waiting or self._next_by_priority(targets)
        if waiting is not None:
            self.remove(waiting)
        return waiting

    def _next_by_priority(self, targets: Container[str]) -> Waiting | None:
        waiting = [each for each in Priority if any(target in targets for target in self._rounds[each].by_target)]
        if not waiting:
            return None
        overdue = (each for each in reversed(waiting) if self._passed_over[each] >= FLOOR_STARTS - 1)
        chosen = next(overdue, waiting[0])
        self._passed_over.update(each for each in waiting if each > chosen)
        self._passed_over[chosen] = 0
        return self._rounds[chosen].next(targets)


_Key = TypeVar("_Key")


def _subtract(counter: Counter[_Key], key: _Key) -> None:
    """Count one less, and keep no zero."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
