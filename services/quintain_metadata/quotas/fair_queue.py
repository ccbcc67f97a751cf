"""The calls that wait for their turn at one key or target, in the order in which they start. No I/O, no clock.

Calls that take over a running call come first. Then, within a priority, deficit round robin over root sessions by
weight; within a session and target the first to arrive is the first. Where a root session's children have less weight
than it, its calls share its weight by theirs. A higher priority goes first, but the lowest one that waits gets one
start in twenty, and one between them nearly so.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from typing import TypeVar

from quintain.contracts.session import DEFAULT_WEIGHT, Priority
from quintain_metadata.ledger.call_rows import CallKey
from quintain_metadata.ledger.decisions import DeferReason

#: A lower priority that waits gets at least one of so many starts.
FLOOR_STARTS = 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits: ``root_id`` is the root of its session, and ``weight`` that of its own.

    Those that came earlier have smaller numbers. ``reason`` is what it waits for: a ``payer``'s money, of which it
    needs ``cost``; its next try, which does not begin before ``not_before``; the lease of its worker, ``incarnation``.
    It waits until its ``deadline``. Times are seconds, costs picodollars.
    """

    attempt_id: str
    target: str
    root_id: str
    weight: int = DEFAULT_WEIGHT
    priority: Priority = Priority.NORMAL
    is_takeover: bool = False
    number: int = 0
    call: CallKey = ("", "")
    incarnation: str = ""
    reason: DeferReason = DeferReason.TURN
    deadline: float = math.inf
    not_before: float = -math.inf
    payer: str | None = None
    cost: int = 0


#: A root session and the weight of calls of it.
_Share = tuple[str, int]


@dataclass(slots=True)
class _Calls:
    """The waiting calls of one root session and weight, by target in the order of arrival."""

    deficit: float = 0.0
    by_target: dict[str, OrderedDict[str, Waiting]] = field(default_factory=dict)

    def first(self, targets: Container[str]) -> Waiting | None:
        """The first call to one of these targets."""
        waiting = next((calls for target, calls in self.by_target.items() if target in targets), None)
        return None if waiting is None else next(iter(waiting.values()))


class _Round:
    """The lines of one priority, in turn: each gains its weight, and starts a call for the heaviest one's weight."""

    def __init__(self) -> None:
        self._lines: OrderedDict[_Share, _Calls] = OrderedDict()
        self._weights: Counter[int] = Counter()
        #: The weights of each root session's lines.
        self._weights_of: dict[str, set[int]] = {}
        #: How many calls wait for each target.
        self.by_target: Counter[str] = Counter()

    def add(self, waiting: Waiting) -> None:
        share = waiting.root_id, waiting.weight
        line = self._lines.get(share)
        if line is None:
            line = self._lines[share] = _Calls()
            self._weights[waiting.weight] += 1
            self._weights_of.setdefault(waiting.root_id, set()).add(waiting.weight)
        _insert(line.by_target.setdefault(waiting.target, OrderedDict()), waiting)
        self.by_target[waiting.target] += 1

    def remove(self, waiting: Waiting) -> None:
        _subtract(self.by_target, waiting.target)
        share = root_id, weight = waiting.root_id, waiting.weight
        line = self._lines[share]
        calls = line.by_target[waiting.target]
        del calls[waiting.attempt_id]
        if not calls:
            del line.by_target[waiting.target]
        if not line.by_target:
            del self._lines[share]
            _subtract(self._weights, weight)
            self._weights_of[root_id].remove(weight)
            if not self._weights_of[root_id]:
                del self._weights_of[root_id]

    def next(self, targets: Container[str]) -> Waiting | None:
        """The call whose turn it is among those to these targets, which the caller removes."""
        heaviest, without_call = max(self._weights, default=0), 0
        while without_call < len(self._lines):
            share, line = next(iter(self._lines.items()))
            # To the end of the round.
            self._lines.move_to_end(share)
            waiting = line.first(targets)
            if waiting is None:
                without_call += 1
                continue
            without_call = 0
            line.deficit += self._gain(*share)
            if line.deficit >= heaviest:
                line.deficit -= heaviest
                return waiting
        return None

    def _gain(self, root_id: str, weight: int) -> float:
        """What a line gains in a round: its part of the heaviest weight among the lines of its root session."""
        weights = self._weights_of[root_id]
        return max(weights) * weight / sum(weights)


class FairQueue:
    """The waiting calls of one key."""

    def __init__(self) -> None:
        self._calls: dict[str, Waiting] = {}
        self._takeovers = OrderedDict[str, Waiting]()
        self._rounds = {priority: _Round() for priority in Priority}
        self._passed_over: Counter[Priority] = Counter()
        #: How many calls wait for each target.
        self.by_target: Counter[str] = Counter()

    def add(self, waiting: Waiting) -> None:
        """Add a call that does not wait yet."""
        self._calls[waiting.attempt_id] = waiting
        self.by_target[waiting.target] += 1
        if waiting.is_takeover:
            _insert(self._takeovers, waiting)
        else:
            self._rounds[waiting.priority].add(waiting)

    def remove(self, attempt_id: str) -> None:
        """Remove a call, if it waits here."""
        waiting = self._calls.pop(attempt_id, None)
        if waiting is None:
            return
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
            self.remove(waiting.attempt_id)
        return waiting

    def take_all(self, target: str) -> list[Waiting]:
        """Remove and return all calls to a target, in the order of their arrival."""
        found = sorted((each for each in self._calls.values() if each.target == target), key=lambda each: each.number)
        for waiting in found:
            self.remove(waiting.attempt_id)
        return found

    def _next_by_priority(self, targets: Container[str]) -> Waiting | None:
        waiting = [each for each in Priority if any(target in targets for target in self._rounds[each].by_target)]
        if not waiting:
            return None
        overdue = (each for each in reversed(waiting) if self._passed_over[each] >= FLOOR_STARTS - 1)
        chosen = next(overdue, waiting[0])
        self._passed_over.update(each for each in waiting if each.rank > chosen.rank)
        self._passed_over[chosen] = 0
        return self._rounds[chosen].next(targets)


def _insert(calls: OrderedDict[str, Waiting], waiting: Waiting) -> None:
    """Add a call behind those that came earlier."""
    later = list(itertools.takewhile(lambda key: calls[key].number > waiting.number, reversed(calls)))
    calls[waiting.attempt_id] = waiting
    for attempt_id in reversed(later):
        calls.move_to_end(attempt_id)


_Key = TypeVar("_Key")


def _subtract(counter: Counter[_Key], key: _Key) -> None:
    """Count one less, and keep no zero."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
