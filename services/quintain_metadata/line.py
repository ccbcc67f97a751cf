"""The line: every call that waits, for what, and who is next. No I/O, no clock.

A call asks with `offer`. What the ledger says is noted with `granted`, `refused` or `wait`. `next` names the calls that
the ledger is to be asked about: those whose turn it is, which have a place, and those for which something else has
changed. The order of turns is that of `quotas.fair_queue`: take-overs, then priority, then shares of sessions, then
arrival. Times are seconds of any clock that rises; the caller looks again at `due_at`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

from quintain.contracts.quota import TryOutcome, TryReport
from quintain_metadata.ledger.call_rows import CallKey
from quintain_metadata.ledger.decisions import DeferReason
from quintain_metadata.ledger.targets import MIN_PAUSE_SECONDS
from quintain_metadata.places import NOT_SENT, UNKNOWN, Places, RunningAttempt, TargetGroup
from quintain_metadata.quotas.fair_queue import Waiting


class Ask(NamedTuple):
    """A waiting call that the ledger is asked about, and whether it has a place."""

    waiting: Waiting
    has_place: bool


class CallLine:
    """The calls that wait, and the places that they wait for."""

    def __init__(self) -> None:
        self.places = Places()
        #: The attempts that wait. Only this class changes it.
        self.waiting: dict[str, Waiting] = {}
        self._of_call: dict[CallKey, dict[str, None]] = {}
        self._of_payer: dict[str, dict[str, None]] = {}
        #: Those to look at, and whether the ledger is asked about them though they have no place.
        self._ready: dict[str, bool] = {}
        #: What is to be looked at, and when: a group, or an attempt.
        self._due: list[tuple[float, int, TargetGroup | str]] = []
        self._numbers = itertools.count()

    def offer(self, now: float, attempt_id: str, target: str, call: CallKey, incarnation: str) -> bool:
        """Give a call that asks a place, if it may start before all that wait; returns whether it has one."""
        places = self.places
        if attempt_id in places.running:
            return True
        if places.is_held(call) or places.wait_seconds(now, target) > 0:
            return False
        group = places.targets[target].group
        if group.queue.by_target and places.ready_targets(now, group):
            return False
        places.start(now, RunningAttempt(attempt_id, target, call, incarnation))
        return True

    def wait(self, now: float, waiting: Waiting) -> None:
        """Let a call wait for what its ``reason`` says; one that waits already keeps its number. It has no place."""
        attempt_id, before = waiting.attempt_id, self.give_up(now, waiting.attempt_id)
        waiting = replace(waiting, number=next(self._numbers) if before is None else before.number)
        self.waiting[attempt_id] = waiting
        self._of_call.setdefault(waiting.call, {})[attempt_id] = None
        if waiting.reason is not DeferReason.CALL and waiting.deadline < math.inf:
            self._look_at(waiting.deadline, attempt_id)
        match waiting.reason:
            # Behind an attempt of the same call it is asked about again at the end of that one.
            case DeferReason.TURN if not self.places.is_held(waiting.call):
                group = self.places.target(waiting.target).group
                group.queue.add(waiting)
                self.places.changed[group] = None
            case DeferReason.RETRY:
                self._look_at(waiting.not_before, attempt_id)
            case DeferReason.MONEY:
                self._of_payer.setdefault(waiting.payer or "", {})[attempt_id] = None

    def granted(self, now: float, running: RunningAttempt) -> bool:
        """Note that the ledger lets an attempt run; returns whether it tries a target that is out.

        One that has no place, because its first grant was lost on the way, is counted.
        """
        self._leave(running.attempt_id)
        found = self.places.running.get(running.attempt_id)
        if found is None:
            found = running
            self.places.start(now, found, is_resumed=True)
        found.deadline = running.deadline
        return found.quota is not None and found.target in found.quota.outages.out_targets()

    def refused(self, now: float, attempt_id: str, call: CallKey) -> None:
        """Note that a call is refused, or answered from the ledger: others that wait for it are asked about again."""
        self.give_up(now, attempt_id)
        self.wake_call(call)

    def undecided(self, now: float, attempt_id: str) -> None:
        """Note that the ledger was out of reach: a call that waits goes on waiting, as before."""
        waiting = self.waiting.get(attempt_id)
        if waiting is None:
            self.places.end(now, attempt_id, NOT_SENT)
        else:
            self.wait(now, waiting)

    def give_up(self, now: float, attempt_id: str) -> Waiting | None:
        """Forget a call that waits no longer, with a place that it has by mistake; returns what it was."""
        self.places.end(now, attempt_id, NOT_SENT)
        return self._leave(attempt_id)

    def end(
        self, now: float, attempt_id: str, call: CallKey, report: TryReport, without_place: RunningAttempt | None = None
    ) -> None:
        """End an attempt at a call, and learn from how it ended, also where it ran ``without_place``."""
        if without_place is not None and attempt_id not in self.places.running:
            self.places.start(now, without_place, is_resumed=True)
        running = self.places.end(now, attempt_id, report)
        self.wake_call(call)
        if running is None:
            return
        asked = 0.0 if report.rates is None else report.rates.retry_after_seconds or 0.0
        if running.quota is None and report.outcome is not TryOutcome.ANSWERED and asked > MIN_PAUSE_SECONDS:
            self.places.pause(running.target, now + asked)

    def call_ended(self, now: float, call: CallKey) -> None:
        """Note that no attempt runs a call any more, nobody knows since when."""
        if (holder := self.places.holders.get(call)) is not None:
            self.places.end(now, holder, UNKNOWN)
        self.wake_call(call)

    def set_live(self, now: float, live: Collection[str]) -> None:
        """Take over which workers have a lease: who waits for one goes on, and what was lost may be taken over."""
        for call in self.places.set_live(now, live):
            self.wake_call(call)
        self.wake(lambda waiting: waiting.reason is DeferReason.LEASE and waiting.incarnation in live, must_ask=False)

    def of_call(self, call: CallKey) -> list[Waiting]:
        """Return the attempts at a call that wait."""
        return [self.waiting[attempt_id] for attempt_id in self._of_call.get(call, ())]

    @property
    def payers(self) -> Collection[str]:
        """The sessions for whose money calls wait."""
        return self._of_payer.keys()

    def payers_before(self, number: float = math.inf, but: Collection[str] = ()) -> list[str]:
        """Return the sessions for whose money calls wait that came before this number, without these attempts."""
        return [
            payer
            for payer, attempts in self._of_payer.items()
            if any(self.waiting[each].number < number and each not in but for each in attempts)
        ]

    def money(self, payer: str, free: int, left: int) -> None:
        """Note what a session has free, and would have left with nothing in flight: who need not wait any longer?

        Who does not fit keeps the money from those behind it. A take-over does not wait for what lost calls hold, which
        only the ledger knows.
        """
        waiting = (self.waiting[each] for each in self._of_payer.get(payer, ()))
        for each in sorted(waiting, key=_order):
            must_ask = each.is_takeover or each.cost > left
            if not must_ask:
                if each.cost > free:
                    return
                free -= each.cost
            self._make_ready(each, must_ask=must_ask)

    def wake(self, condition: Callable[[Waiting], bool], *, must_ask: bool = True) -> None:
        """Look at those that wait for which the condition holds."""
        for waiting in self.waiting.values():
            if condition(waiting):
                self._make_ready(waiting, must_ask=must_ask)

    def next(self, now: float, most: int = sys.maxsize) -> list[Ask]:
        """Return so many calls that the ledger is asked about now, each until it is noted what the ledger says.

        One of which it is asked in any case may have no place: it may be refused, or answered.
        """
        self._look_at_time(now)
        asks = list[Ask]()
        for waiting in self._sorted_ready():
            if len(asks) >= most:
                break
            must_ask, attempt_id = self._ready.pop(waiting.attempt_id), waiting.attempt_id
            has_place = False
            if must_ask or waiting.reason is DeferReason.MONEY:
                self.places.target(waiting.target).group.queue.remove(attempt_id)
                has_place = self.offer(now, attempt_id, waiting.target, waiting.call, waiting.incarnation)
            if has_place or must_ask:
                asks.append(Ask(waiting, has_place))
            else:
                self.wait(now, replace(waiting, reason=DeferReason.TURN, payer=None))
        while self.places.changed and len(asks) < most:
            group = next(iter(self.places.changed))
            del self.places.changed[group]
            self._grant(now, group, most, asks)
        return asks

    def due_at(self) -> float:
        """When to look again though nothing happens; a time that has passed where something has changed."""
        if self._ready or self.places.changed:
            return -math.inf
        return self._due[0][0] if self._due else math.inf

    def _grant(self, now: float, group: TargetGroup, most: int, asks: list[Ask]) -> None:
        """Start the calls of a group whose turn it is, and note when it is to be looked at again."""
        while group.queue.by_target and (targets := self.places.ready_targets(now, group)):
            if len(asks) >= most:
                self.places.changed[group] = None
                return
            waiting = group.queue.take(targets)
            assert waiting is not None, "a call waits for each of these targets"
            self.places.start(
                now, RunningAttempt(waiting.attempt_id, waiting.target, waiting.call, waiting.incarnation)
            )
            asks.append(Ask(waiting, has_place=True))
        if group.queue.by_target:
            due_at = now + min(self.places.wait_seconds(now, name) for name in group.queue.by_target)
            if due_at < math.inf and not now < group.due_at <= due_at:
                group.due_at = due_at
                self._look_at(due_at, group)
        elif group.quota is not None:
            group.quota.limits.idle(now)

    def _look_at(self, at: float, what: TargetGroup | str) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), what))

    def _look_at_time(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, _, found = heapq.heappop(self._due)
            if isinstance(found, TargetGroup):
                self.places.changed[found] = None
            elif (waiting := self.waiting.get(found)) is not None:
                if waiting.deadline <= now and waiting.reason is not DeferReason.CALL:
                    self._make_ready(waiting, must_ask=True)
                elif waiting.reason is DeferReason.RETRY and waiting.not_before <= now:
                    self._make_ready(waiting, must_ask=False)

    def _make_ready(self, waiting: Waiting, *, must_ask: bool) -> None:
        self._ready[waiting.attempt_id] = must_ask or self._ready.get(waiting.attempt_id, False)

    def _sorted_ready(self) -> list[Waiting]:
        """Return those to look at, take-overs first, and drop those that wait no longer."""
        self._ready = {attempt_id: ask for attempt_id, ask in self._ready.items() if attempt_id in self.waiting}
        return sorted((self.waiting[attempt_id] for attempt_id in self._ready), key=_order)

    def wake_call(self, call: CallKey) -> None:
        """Ask about those that wait for a call."""
        for attempt_id in self._of_call.get(call, ()):
            self._make_ready(self.waiting[attempt_id], must_ask=True)

    def _leave(self, attempt_id: str) -> Waiting | None:
        waiting = self.waiting.pop(attempt_id, None)
        if waiting is None:
            return None
        self.places.target(waiting.target).group.queue.remove(attempt_id)
        _discard(self._of_call, waiting.call, attempt_id)
        if waiting.reason is DeferReason.MONEY:
            _discard(self._of_payer, waiting.payer or "", attempt_id)
        return waiting


def _order(waiting: Waiting) -> tuple[bool, int]:
    return not waiting.is_takeover, waiting.number


def _discard(index: dict[Any, dict[str, None]], key: Any, attempt_id: str) -> None:
    """Remove an attempt from an index, and its entry with its last attempt."""
    members = index[key]
    del members[attempt_id]
    if not members:
        del index[key]
