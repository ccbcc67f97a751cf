"""What holds for a governor whatever happens to its calls: no slot too many, none lost, nobody left waiting."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.contracts.quota import QuotaTerms, RateFigures, RateReport, TryOutcome, TryReport
from quintain.contracts.session import Priority
from quintain_metadata.quotas.fair_queue import Waiting
from quintain_metadata.quotas.governor import Governor
from quintain_metadata.quotas.limits import MAX_PAUSE_SECONDS
from quintain_metadata.quotas.outages import MAX_PROBE_SECONDS

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
    quota_id=st.just("key"),
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
        self.governor = Governor()
        self.governor.configure(0, "key", [QuotaTerms(start=3, max=MAX_IN_FLIGHT)])
        self.waiting: dict[str, Waiting] = {}
        self.running: dict[str, str] = {}

    def grant(self, now: float) -> None:
        targets = list(self.running.values())
        free = {target: MAX_CONCURRENCY - targets.count(target) for target in ("a", "b")}
        for granted in self.governor.grant(now, free):
            assert self.waiting.pop(granted.attempt_id) == granted
            self.running[granted.attempt_id] = granted.target
        targets = list(self.running.values())
        assert len(targets) <= MAX_IN_FLIGHT
        assert max(targets.count(target) for target in ("a", "b")) <= MAX_CONCURRENCY
        (seen,) = self.governor.describe(now)
        assert (seen.in_flight, seen.waiting) == (len(self.running), len(self.waiting))

    def apply(self, now: float, step: object) -> None:
        if isinstance(step, Waiting):
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
