"""What holds for a governor whatever happens to its calls: no slot too many, none lost, nobody left waiting."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.contracts.quota import QuotaTerms, RateFigures, RateReport, TryOutcome, TryReport
from quintain.contracts.session import Priority
from quintain_metadata.quotas.fair_queue import FairQueue, Waiting
from quintain_metadata.quotas.limits import MAX_PAUSE_SECONDS
from quintain_metadata.quotas.outages import MAX_PROBE_SECONDS
from support.one_key import OneKey

MAX_IN_FLIGHT, MAX_CONCURRENCY = 6, 4

amounts = st.integers(0, 10_000_000).map(lambda tenths: tenths / 10)
figures = st.builds(
    RateFigures,
    limit=amounts.map(lambda amount: amount + 0.1),
    remaining=amounts,
    resetSeconds=amounts,  # by its alias: `builds` would invent a value for it too
)
reports = st.builds(
    TryReport,
    outcome=st.sampled_from([outcome for outcome in TryOutcome if outcome is not TryOutcome.REFUSED]),
    tokens=st.none() | amounts,
    rates=st.none()
    | st.builds(
        RateReport,
        requests=st.none() | figures,
        tokens=st.none() | figures,
        retry_after_seconds=st.none() | amounts,
    ),
)
calls = st.builds(
    Waiting,
    attempt_id=st.integers(0, 30).map(str),
    target=st.sampled_from(["a", "b"]),
    root_id=st.sampled_from(["x", "y", "z"]),
    weight=st.integers(1, 100),
    priority=st.sampled_from(Priority),
    is_takeover=st.booleans(),
)
#: What happens next, after so many seconds.
steps = st.lists(
    st.tuples(
        st.integers(0, 300).map(lambda tenths: tenths / 10),
        st.one_of(calls, st.tuples(st.integers(0, 5), reports), st.integers(0, 30).map(str)),
    ),
    max_size=80,
)


class Model:
    """The governor, and which calls it was told of."""

    def __init__(self) -> None:
        self.governor = OneKey(QuotaTerms(start=3, max=MAX_IN_FLIGHT))
        self.waiting: dict[str, Waiting] = {}
        self.running: dict[str, str] = {}

    def grant(self, now: float) -> None:
        targets = list(self.running.values())
        free = {target: MAX_CONCURRENCY - targets.count(target) for target in ("a", "b")}
        for granted in self.governor.grant(now, free):
            assert self.waiting.pop(granted.attempt_id).target == granted.target
            self.running[granted.attempt_id] = granted.target
        targets = list(self.running.values())
        assert len(targets) <= MAX_IN_FLIGHT
        assert max(targets.count(target) for target in ("a", "b")) <= MAX_CONCURRENCY
        seen = self.governor.figures(now)
        assert (seen.in_flight, seen.waiting) == (len(self.running), len(self.waiting))

    def apply(self, now: float, step: object) -> None:
        if isinstance(step, Waiting):
            step = dataclasses.replace(step, call=("s", step.attempt_id))
            if step.attempt_id not in self.running:
                self.waiting.setdefault(step.attempt_id, step)
            self.governor.wait(step)
        elif isinstance(step, str):
            self.governor.forget(now, step)
            self.waiting.pop(step, None)
            self.running.pop(step, None)
        elif self.running:
            index, report = step  # type: ignore[misc]
            attempt_id = list(self.running)[index % len(self.running)]
            del self.running[attempt_id]
            self.governor.end(now, attempt_id, report)


@settings(deadline=None, max_examples=200)
@given(steps)
def test_no_limit_is_exceeded_no_slot_is_lost_and_every_call_starts_in_the_end(
    happened: list[tuple[float, object]],
) -> None:
    model, now = Model(), 0.0
    for seconds, step in happened:
        now += seconds
        model.apply(now, step)
        model.grant(now)
    # From now on the provider answers: within its longest pauses everybody has started.
    bound = now + 40 * (MAX_PAUSE_SECONDS + MAX_PROBE_SECONDS) + 86_400
    while model.waiting:
        for attempt_id in list(model.running):
            del model.running[attempt_id]
            model.governor.end(now, attempt_id, TryReport(outcome=TryOutcome.ANSWERED))
        model.grant(now)
        if model.waiting and not model.running:
            assert now < model.governor.due_at(now) < bound
            now = model.governor.due_at(now)
            model.grant(now)
            assert model.running or model.governor.due_at(now) > now


def starts_of(weights: Mapping[str, int], count: int, takeovers: Mapping[int, Sequence[str]]) -> Counter[str]:
    """How many of so many starts each session has, all of which always have calls that wait.

    Before some starts another service takes the quota over: it knows no deficits, and learns who waits in this order.
    """
    starts = Counter[str]()

    def learn(sessions: Iterable[str]) -> FairQueue:
        queue = FairQueue()
        for session in sessions:
            for number in range(starts[session], count + 1):
                queue.add(Waiting(f"{session} {number}", "a", session, weights[session]))
        return queue

    queue = learn(weights)
    for number in range(count):
        queue = learn(takeovers[number]) if number in takeovers else queue
        waiting = queue.take({"a"})
        assert waiting is not None
        starts[waiting.root_id] += 1
    return starts


@given(
    weights=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 100), min_size=2),
    count=st.integers(1, 150),
    data=st.data(),
)
def test_a_take_over_costs_no_session_more_than_a_start(
    weights: dict[str, int], count: int, data: st.DataObject
) -> None:
    numbers, orders = st.integers(0, count), st.permutations(sorted(weights))
    takeovers = data.draw(st.dictionaries(numbers, orders, max_size=3))
    starts = starts_of(weights, count, takeovers)
    for session, weight in weights.items():
        # A start for the round that is not over, and one for the deficit that is not known any more.
        assert starts[session] > count * weight / sum(weights.values()) - 2 - len(takeovers)
