"""The governor: who may start when, within a limit that is given, and what each end of a call teaches."""

from __future__ import annotations

import json
import math

import pytest

from governor import SCENES
from quintain.contracts.quota import (
    FailureCause,
    QuotaTerms,
    RateFigures,
    RateReport,
    TryFailure,
    TryOutcome,
    TryReport,
)
from quintain.contracts.session import Priority
from quintain_metadata.quotas.fair_queue import Waiting
from quintain_metadata.quotas.governor import QuotaFigures
from quintain_metadata.quotas.limits import MAX_PAUSE_SECONDS, CutCause
from quintain_metadata.quotas.outages import FAILURES_BEFORE_OUTAGE, FIRST_PROBE_SECONDS, MAX_PROBE_SECONDS
from support.one_key import OneKey

ANSWERED = TryReport(outcome=TryOutcome.ANSWERED)
FAILED = TryReport(outcome=TryOutcome.FAILED)


def governor(**terms: object) -> OneKey:
    return OneKey(QuotaTerms.model_validate(terms))


def throttled(retry_after_seconds: float | None = None) -> TryReport:
    return TryReport(outcome=TryOutcome.THROTTLED, rates=RateReport(retry_after_seconds=retry_after_seconds))


def wait(on: OneKey, *ids: str, target: str = "t", session: str = "s", **fields: object) -> None:
    for attempt_id in ids:
        on.wait(Waiting(attempt_id, target, session, call=("s", attempt_id), **fields))  # type: ignore[arg-type]


def granted(on: OneKey, now: float, **free: int) -> list[str]:
    return [waiting.attempt_id for waiting in on.grant(now, free)]


def figures(on: OneKey, now: float) -> QuotaFigures:
    return on.figures(now)


#: Ten minutes at 2,000 a minute take a quarter of the time of all, and prove no more than those at 60 and 600.
@pytest.mark.parametrize("scene", [scene for scene in SCENES if not scene.startswith("2,000 a minute")])
def test_each_scene_reaches_its_aims(scene: str) -> None:
    assert [aim for aim in SCENES[scene](scene) if not aim.is_reached] == []


def test_no_more_start_than_the_limit_allows_and_each_end_lets_one_more() -> None:
    on = governor(start=2, adaptive=False)
    wait(on, "a", "b", "c", "d")
    assert granted(on, 0) == ["a", "b"]
    assert granted(on, 100) == []
    assert on.due_at(100) == math.inf
    on.end(100, "a", ANSWERED)
    assert granted(on, 100) == ["c"]
    on.forget(101, "b")
    assert granted(on, 101) == ["d"]
    assert figures(on, 101).in_flight == 2


def test_an_offered_call_starts_at_once_but_not_before_one_that_waits() -> None:
    on = governor(start=2, adaptive=False)
    assert on.offer(0, "a", "t")
    assert on.offer(0, "a", "t"), "a repeated offer of a call that runs takes no second slot"
    assert on.offer(0, "b", "t")
    assert not on.offer(0, "c", "t")
    wait(on, "d")
    on.end(1, "a", ANSWERED)
    assert not on.offer(1, "c", "t")
    assert granted(on, 1) == ["d"]


def test_a_target_that_is_full_keeps_no_other_target_of_its_quota_waiting() -> None:
    on = governor(start=10, adaptive=False)
    wait(on, "a", "b", target="full")
    wait(on, "c", target="free")
    assert granted(on, 0, full=1, free=5) == ["a", "c"]
    assert on.offer(0, "d", "free", {"full": 0, "free": 4})


def test_a_take_over_comes_first_and_a_call_that_runs_already_takes_its_slot() -> None:
    on = governor(start=1, adaptive=False)
    on.resume(0, "running", "t")
    wait(on, "a")
    wait(on, "b", is_takeover=True)
    assert granted(on, 0) == []
    on.end(1, "running", ANSWERED)
    assert granted(on, 1) == ["b"]


def test_sessions_share_by_weight_and_one_call_does_not_wait_behind_thousands() -> None:
    on = governor(start=1, adaptive=False)
    for number in range(200):
        wait(on, f"heavy{number}", session="heavy", weight=30)
        wait(on, f"light{number}", session="light", weight=10)
    order = list[str]()
    for now in range(80):
        order += granted(on, now)
        on.end(now, order[-1], ANSWERED)
        if now == 40:
            wait(on, "late", session="late", weight=10)
    assert order.index("late") <= 46
    heavy = sum(name.startswith("heavy") for name in order)
    assert 57 <= heavy <= 61


def test_a_child_of_less_weight_takes_part_in_the_weight_of_its_root() -> None:
    on = governor(start=1, adaptive=False)
    for number in range(300):
        wait(on, f"parent{number}", session="root", weight=30)
        wait(on, f"child{number}", session="root", weight=10)
        wait(on, f"other{number}", session="other", weight=30)
    order = list[str]()
    for now in range(200):
        order += granted(on, now)
        on.end(now, order[-1], ANSWERED)
    counts = [sum(name.startswith(word) for name in order) for word in ("parent", "child", "other")]
    assert counts == [75, 25, 100]


def test_a_higher_priority_comes_first_and_each_lower_one_has_its_floor() -> None:
    on = governor(start=1, adaptive=False)
    for priority in Priority:
        for number in range(100):
            wait(on, f"{priority.name}{number}", session=priority.name, priority=priority)
    order = list[str]()
    for now in range(100):
        order += granted(on, now)
        on.end(now, order[-1], ANSWERED)
    counts = [sum(name.startswith(priority.name) for name in order) for priority in Priority]
    assert counts == [91, 4, 5]


def test_tokens_are_taken_at_the_start_and_corrected_at_the_end() -> None:
    on = governor(tokens_per_minute=60_000, start=200, max=200)
    used = TryReport(outcome=TryOutcome.ANSWERED, tokens=5000)
    wait(on, *(str(number) for number in range(200)))
    now, count = 0.0, 0
    while now < 120:
        for attempt_id in granted(on, now):
            count += 1
            on.end(now, attempt_id, used)
        now = max(on.due_at(now), now + 1e-6)
    assert 21 <= count <= 26


def test_calls_that_were_refused_together_cut_the_limit_once() -> None:
    on = governor(start=20)
    wait(on, *(str(number) for number in range(60)))
    first = granted(on, 0)
    for attempt_id in first[:10]:
        on.end(1, attempt_id, throttled())
    assert figures(on, 1).limit == 14
    assert figures(on, 1).last_cut == (1, CutCause.IN_FLIGHT)
    assert granted(on, 1) == [], "what was refused is not replaced at once"


def running_after(on: OneKey, seconds: float, *, since: float = 0, free: int = 100_000) -> int:
    """How many calls run after so many seconds without an answer, of a target that may run so many more."""
    now = since
    while now < since + seconds:
        free -= len(granted(on, now, t=free))
        now = min(max(on.due_at(now, {"t": free}), now + 0.001), since + seconds)
    return figures(on, now).in_flight


def wait_many(on: OneKey, count: int = 5000) -> None:
    wait(on, *(f"{number}" for number in range(count)))


def test_calls_that_are_not_refused_for_two_seconds_let_others_start_evenly_before_any_answer() -> None:
    on = governor(start=20, max=5000)
    wait_many(on)
    assert running_after(on, 1.9) == 20
    assert running_after(on, 2.1, since=1.9) == pytest.approx(40, abs=2)
    assert running_after(on, 2, since=4) == pytest.approx(80, abs=4)
    first = len(granted(on, 6))
    now = on.due_at(6, {"t": 10})
    assert now - 6 < 0.5, "each starts when its time comes, and not all of two seconds together"
    assert first + len(granted(on, now)) < 8


def test_a_silent_provider_has_no_more_in_flight_than_256_and_twice_what_ran_at_its_last_answer() -> None:
    on = governor(start=20, max=5000)
    wait_many(on)
    assert running_after(on, 60) == 256
    on.end(60, "0", ANSWERED)
    assert running_after(on, 60, since=60) == pytest.approx(2 * 256, abs=2)


def test_what_waits_for_its_own_target_or_comes_later_was_not_sent_and_lets_nothing_grow() -> None:
    on = governor(start=20, max=5000)
    wait_many(on, 30)
    assert running_after(on, 60, free=15) == 15
    assert figures(on, 60).limit == 20
    on = governor(start=20, max=5000)
    wait_many(on, 20)
    assert running_after(on, 60) == 20
    wait_many(on)
    assert running_after(on, 1.9, since=60) == 20, "no call waited until now"


@pytest.mark.parametrize("report", [throttled(), FAILED])
def test_after_a_refusal_or_a_failure_nothing_grows_by_time_alone(report: TryReport) -> None:
    on = governor(start=20, max=5000)
    wait_many(on)
    running_after(on, 3)
    before = figures(on, 3).limit
    on.end(3, "0", report)
    on.end(3, "1", report)
    assert running_after(on, 60, since=3) <= before
    assert figures(on, 63).limit <= before


def test_beyond_the_limit_of_a_refusal_that_was_an_accident_it_grows_by_time_again() -> None:
    on = governor(start=20, max=5000)
    wait_many(on)
    ids = granted(on, 0)
    on.end(1, ids.pop(), throttled())
    now = 1.0
    # By answers it comes back to where it was cut, and beyond that by a call.
    while figures(on, now).limit < 21:
        now += 1
        on.end(now, ids.pop(0), ANSWERED)
        ids += granted(on, now)
    running = running_after(on, 30, since=now)
    assert 22 < running < 80
    assert running_after(on, 30, since=now + 30) > 2 * running


@pytest.mark.parametrize("seconds", [2.0, 30.0])
def test_a_retry_after_holds_the_whole_key(seconds: float) -> None:
    on = governor()
    wait(on, *(str(number) for number in range(40)))
    for attempt_id in granted(on, 0):
        on.end(1, attempt_id, throttled(seconds))
    assert on.due_at(1) == pytest.approx(1 + seconds)
    assert granted(on, 0.9 + seconds) == []
    assert len(granted(on, 1 + seconds)) == 1


def test_no_retry_after_stops_a_key_for_a_day() -> None:
    on = governor()
    wait(on, "a", "b")
    for attempt_id in granted(on, 0):
        on.end(1, attempt_id, throttled(86_400))
    wait(on, "c")
    assert on.due_at(1) == 1 + MAX_PAUSE_SECONDS
    # The key takes a call long before that: such words are not heeded again.
    now = 1 + MAX_PAUSE_SECONDS
    (taken,) = granted(on, now)
    on.end(now + 1, taken, ANSWERED)
    wait(on, "d", "e")
    now = on.due_at(now + 1)
    (refused,) = granted(on, now)
    on.end(now, refused, throttled(86_400))
    assert on.due_at(now) < now + MAX_PAUSE_SECONDS


def test_headers_that_name_little_left_slow_down_before_the_first_refusal() -> None:
    on = governor()
    wait(on, *(str(number) for number in range(40)))
    first = granted(on, 0)
    left = RateFigures(limit=60, remaining=19, reset_seconds=59)
    on.end(1, first[0], TryReport(outcome=TryOutcome.ANSWERED, rates=RateReport(requests=left)))
    # Of the 19 that are left the 19 that were granted after this call have been taken.
    assert granted(on, 1) == []
    assert on.due_at(1) >= 50


@pytest.mark.parametrize(
    "lie",
    [
        RateFigures(limit=60, remaining=5000, reset_seconds=1),
        RateFigures(limit=1, remaining=1, reset_seconds=1e9),
        RateFigures(limit=200, remaining=150, reset_seconds=7 * 3600),
    ],
)
def test_headers_that_contradict_themselves_or_speak_of_days_pace_nothing(lie: RateFigures) -> None:
    on = governor()
    wait(on, "a", *(str(number) for number in range(40)))
    on.end(1, granted(on, 0)[0], TryReport(outcome=TryOutcome.ANSWERED, rates=RateReport(requests=lie)))
    assert figures(on, 1).requests_per_minute is None
    assert granted(on, 1) != []


def test_failures_in_a_row_are_an_outage_and_probes_come_at_growing_intervals() -> None:
    on = governor(start=8)
    wait(on, *(str(number) for number in range(60)))
    now = 1.0
    for attempt_id in granted(on, 0):
        on.end(now, attempt_id, FAILED)
    assert figures(on, now).out_since == now
    for seconds in (FIRST_PROBE_SECONDS, 10.0, 20.0, 40.0, 80.0, MAX_PROBE_SECONDS, MAX_PROBE_SECONDS):
        assert on.due_at(now) == now + seconds
        now += seconds
        (probe,) = granted(on, now)
        on.end(now, probe, FAILED)
    now = on.due_at(now)
    (probe,) = granted(on, now)
    on.end(now, probe, ANSWERED)
    assert figures(on, now).out_since is None
    assert len(granted(on, now)) == 1, "the line opens at the lowest limit"


def test_one_target_that_fails_alone_is_out_alone() -> None:
    on = governor(start=30, adaptive=False)
    wait(on, *(f"bad{number}" for number in range(FAILURES_BEFORE_OUTAGE + 1)), target="bad")
    wait(on, *(f"good{number}" for number in range(20)), target="good")
    for attempt_id in granted(on, 0, bad=FAILURES_BEFORE_OUTAGE, good=1):
        on.end(1, attempt_id, FAILED if attempt_id.startswith("bad") else ANSWERED)
    assert set(figures(on, 1).out_targets) == {"bad"}
    assert figures(on, 1).out_since is None
    assert granted(on, 1, bad=5, good=5) == [f"good{number}" for number in range(1, 6)]


def test_why_a_target_had_no_answer_is_told_until_it_answers_also_by_the_next_owner() -> None:
    on, failure = governor(), TryFailure(words="Connection refused", cause=FailureCause.NOT_TAKEN)
    wait(on, "a", "b", target="bad")
    wait(on, "c", target="good")
    for attempt_id in granted(on, 0):
        is_good = attempt_id == "c"
        on.end(1, attempt_id, ANSWERED if is_good else TryReport(outcome=TryOutcome.FAILED, failure=failure))
    next_owner = governor()
    not_found = TryReport(outcome=TryOutcome.ANSWERED, failure=TryFailure(words="404", cause=FailureCause.NOT_FOUND))
    wait(on, "e", target="good")
    (attempt_id,) = granted(on, 1)
    on.end(1, attempt_id, not_found)
    assert set(figures(on, 1).failures) == {"bad", "good"}
    on.configure(1, QuotaTerms(max=255))
    assert figures(on, 1).failures == {}, "a worker that was started anew may have another path"
    wait(on, "f", target="bad")
    (attempt_id,) = granted(on, 1)
    on.end(1, attempt_id, TryReport(outcome=TryOutcome.FAILED, failure=failure))
    next_owner.quota.restore(2, 1, json.loads(json.dumps(on.quota.save(1))))
    for each in (on, next_owner):
        assert figures(each, 2).failures == {"bad": failure}
        wait(each, "d", target="bad")
        assert granted(each, 9) == ["d"]
        each.end(9, "d", ANSWERED)
        assert figures(each, 9).failures == {}


def test_a_refused_key_is_told_and_holds_no_call_until_it_is_answered_or_configured_again() -> None:
    on, refused = governor(), TryReport(outcome=TryOutcome.REFUSED)
    wait(on, "a", "b")
    on.end(1, granted(on, 0)[0], refused)
    assert figures(on, 1).is_refused
    wait(on, "c")
    assert granted(on, 2) == ["c"]
    on.end(3, "c", ANSWERED)
    assert not figures(on, 3).is_refused
    wait(on, "d")
    on.end(5, granted(on, 4)[0], refused)
    assert figures(on, 5).is_refused
    on.configure(6, QuotaTerms())
    assert not figures(on, 6).is_refused


def test_a_refusal_of_one_model_or_one_call_is_none_of_the_key() -> None:
    on, refused = governor(), TryReport(outcome=TryOutcome.REFUSED)
    wait(on, "a", "b", target="forbidden")
    wait(on, "c", "d", "e", target="t")
    assert set(granted(on, 0)) == {"a", "b", "c", "d", "e"}
    on.end(1, "a", refused)
    on.end(2, "c", ANSWERED)
    on.end(3, "d", refused)
    wait(on, "f", target="forbidden")
    wait(on, "g", target="t")
    assert granted(on, 4) == ["f", "g"]
    assert not figures(on, 4).is_refused
    on.end(5, "g", refused)
    assert figures(on, 5).is_refused


def test_a_call_that_waits_is_not_offered_a_place_and_a_full_target_has_none() -> None:
    on = governor()
    wait(on, "a")
    assert not on.offer(0, "a", "t")
    assert not on.offer(0, "b", "full", {"full": 0, "t": 0})
    assert on.due_at(0, {"t": 0}) == math.inf
    assert granted(on, 0) == ["a"]


def test_other_terms_hold_at_once_and_drop_no_running_call() -> None:
    on = governor(start=10, adaptive=False)
    wait(on, *(str(number) for number in range(20)))
    running = granted(on, 0)
    on.configure(1, QuotaTerms(start=3, adaptive=False))
    assert figures(on, 1).in_flight == 10
    for attempt_id in running[:7]:
        on.end(1, attempt_id, ANSWERED)
        assert granted(on, 1) == []
    on.end(1, running[7], ANSWERED)
    assert len(granted(on, 1)) == 1
