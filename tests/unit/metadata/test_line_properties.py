"""The line beside a plain model of it: whatever happens, the same calls start, in the same order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.contracts.quota import TryOutcome, TryReport
from quintain_metadata.ledger.decisions import DeferReason
from quintain_metadata.line import CallLine
from quintain_metadata.places import RunningAttempt
from quintain_metadata.quotas.fair_queue import Waiting

LIMITS = {"a": 1, "b": 2}
WORKERS = ("w1", "w2")


@dataclass
class Call:
    """A call as the model has it: what it waits for, or that it runs."""

    name: str
    target: str
    worker: str
    takes_over: bool
    reason: DeferReason
    at: float
    cost: int
    runs: bool = False
    is_lost: bool = False


@dataclass
class Model:
    """The line in the plainest words there are: who waits for what, in the order in which they came."""

    now: float = 0.0
    calls: dict[str, Call] = field(default_factory=dict)
    paused_until: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0.0))
    live: set[str] = field(default_factory=lambda: {*WORKERS})

    def waiting(self) -> list[Call]:
        return sorted((call for call in self.calls.values() if not call.runs), key=lambda call: not call.takes_over)

    def has_room(self, target: str) -> bool:
        running = sum(call.runs and call.target == target and not call.is_lost for call in self.calls.values())
        return running < LIMITS[target] and self.paused_until[target] <= self.now

    def pay(self, free: int) -> None:
        for call in self.waiting():
            if call.reason is DeferReason.MONEY:
                if not call.takes_over and call.cost > free:
                    return
                free -= 0 if call.takes_over else call.cost
                call.reason = DeferReason.TURN

    def next(self) -> list[str]:
        for call in self.waiting():
            is_due = call.reason is DeferReason.RETRY and call.at <= self.now
            if is_due or (call.reason is DeferReason.LEASE and call.worker in self.live):
                call.reason = DeferReason.TURN
        started = list[str]()
        for call in self.waiting():
            if call.reason is DeferReason.TURN and self.has_room(call.target):
                call.runs = True
                started.append(call.name)
        return started


class Pair:
    """The line and its model, told the same."""

    def __init__(self) -> None:
        self.line, self.model, self.count = CallLine(), Model(), 0
        for name, limit in LIMITS.items():
            self.line.places.configure_target(0, name, limit, 0)

    def arrive(self, target: str, worker: str, reason: DeferReason, seconds: int, cost: int, takes_over: bool) -> None:
        self.count += 1
        name, at = f"r{self.count}", self.model.now + seconds
        self.model.calls[name] = Call(name, target, worker, takes_over, reason, at, cost)
        if reason is DeferReason.LEASE:
            self.set_live(self.model.live - {worker})
        waiting = Waiting(name, target, "s", is_takeover=takes_over, call=("s", name), incarnation=worker, cost=cost)
        fields = {"reason": reason, "not_before": at, "payer": "s" if reason is DeferReason.MONEY else None}
        self.line.wait(self.model.now, replaced(waiting, fields))

    def end(self, number: int) -> None:
        running = [call.name for call in self.model.calls.values() if call.runs]
        if running:
            name = running[number % len(running)]
            del self.model.calls[name]
            self.line.end(self.model.now, name, ("s", name), TryReport(outcome=TryOutcome.ANSWERED))

    def give_up(self, number: int) -> None:
        if waiting := self.model.waiting():
            name = waiting[number % len(waiting)].name
            del self.model.calls[name]
            self.line.give_up(self.model.now, name)

    def pause(self, target: str, seconds: int) -> None:
        until = max(self.model.paused_until[target], self.model.now + seconds)
        self.model.paused_until[target] = until
        self.line.places.pause(target, until)

    def set_live(self, live: set[str]) -> None:
        self.model.live = live
        for call in self.model.calls.values():
            call.is_lost = call.runs and call.worker not in live
        self.line.set_live(self.model.now, live)

    def pay(self, free: int) -> None:
        self.model.pay(free)
        self.line.money("s", free, 1_000)

    def let_pass(self, seconds: int) -> None:
        self.model.now += seconds

    def at(self, target: str) -> set[str]:
        return {call.name for call in self.model.calls.values() if call.target == target}

    def check(self) -> None:
        started, now = list[str](), self.model.now
        while asks := self.line.next(now):
            for waiting, has_place in asks:
                if has_place:
                    started.append(waiting.attempt_id)
                    self.line.granted(now, RunningAttempt(waiting.attempt_id, waiting.target, waiting.call, "w"))
                else:
                    self.line.wait(now, replaced(waiting, {"reason": DeferReason.TURN, "payer": None}))
        expected = self.model.next()
        for target in LIMITS:
            assert [name for name in started if name in self.at(target)] == [
                name for name in expected if name in self.at(target)
            ]
        assert {*self.line.waiting} == {call.name for call in self.model.waiting()}
        assert {*self.line.places.running} == {call.name for call in self.model.calls.values() if call.runs}
        runs = [call for call in self.model.calls.values() if call.runs and not call.is_lost]
        assert self.line.places.at_workers == Counter((call.target, call.worker) for call in runs)
        assert self.line.due_at() > now


def replaced(waiting: Waiting, fields: dict[str, object]) -> Waiting:
    values = {name: getattr(waiting, name) for name in waiting.__slots__}
    return Waiting(**{**values, **fields})


targets, few = st.sampled_from(sorted(LIMITS)), st.integers(0, 5)
reasons = st.sampled_from([*2 * [DeferReason.TURN, DeferReason.MONEY], DeferReason.RETRY, DeferReason.LEASE])
arrivals = st.tuples(
    st.just("arrive"), targets, st.sampled_from(WORKERS), reasons, few, st.integers(1, 3), st.booleans()
)
events = st.one_of(
    *3 * [arrivals],
    st.tuples(st.just("end"), few),
    st.tuples(st.just("give_up"), few),
    st.tuples(st.just("pause"), targets, few),
    st.tuples(st.just("set_live"), st.sets(st.sampled_from(WORKERS))),
    *2 * [st.tuples(st.just("pay"), few)],
    st.tuples(st.just("let_pass"), few),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(events, min_size=15, max_size=80))
def test_the_same_calls_start_in_the_same_order_as_in_a_plain_model(happened: list[tuple[str, object]]) -> None:
    pair = Pair()
    for what, *told in happened:
        getattr(pair, what)(*told)
        pair.check()
