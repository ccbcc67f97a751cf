"""The model of the fleet, told by hand what it is told over a bus, and what is said of numbers of consumers."""

from __future__ import annotations

import pytest

from quintain.contracts.fleet import (
    BUCKET_BASE,
    CallCounts,
    FleetChanged,
    FleetSession,
    FleetState,
    RegisteredTarget,
    ServedTarget,
    ServiceCard,
    bucket_of,
)
from quintain.contracts.ledger import DrainState
from quintain.contracts.session import RegisteredWorker, SessionState
from quintain.fleet.fleet_figures import (
    SLICE_SECONDS,
    WINDOW_SECONDS,
    BudgetFigures,
    FleetFigures,
    TargetCondition,
    TargetFigures,
    WorkerCondition,
    WorkerFigures,
)
from quintain.fleet.model import EVENTS_SECONDS, GONE_SECONDS, SILENT_SECONDS, FleetModel
from quintain.fleet.tables import amount, duration, errors
from quintain_cli.commands.status import consumer_problems

EPOCH_MS = 1_700_000_000_000


def target(name: str = "echo", **fields: object) -> RegisteredTarget:
    return RegisteredTarget(name=name, provider="mock", max_concurrency=4).model_copy(update=fields)


def worker(name: str = "w1", drain: DrainState = DrainState.SUPPORTED) -> RegisteredWorker:
    return RegisteredWorker(worker_id=name, incarnation=f"{name}-1", lease_until=0, drain=drain, running=1)


def session(used: int, name: str = "s1", max_calls: int = 100) -> FleetSession:
    return FleetSession(
        session_id=name, default_target="echo", call_count=used, max_calls=max_calls, state=SessionState.OPEN
    )


def served(name: str = "echo", kind: str = "mock", **fields: object) -> ServedTarget:
    return ServedTarget(name=name, kind=kind, slots=4, in_flight=1).model_copy(update=fields)


def card(name: str = "w1", service: str = "worker", *targets: ServedTarget) -> ServiceCard:
    found = targets or ((served(),) if service == "worker" else ())
    return ServiceCard(
        service=service, id=name, instance=name, version="1", started_at=0, slots=4, in_flight=2, targets=list(found)
    )


def event(**fields: object) -> FleetChanged:
    return FleetChanged(service="m1", now=EPOCH_MS, interval_ms=500).model_copy(update=fields)


@pytest.fixture
def model() -> FleetModel:
    """A model since 0 s: one target, one worker, one session."""
    model = FleetModel(0.0)
    model.on_state(FleetState(targets=[target()], workers=[worker()], sessions=[session(0)], now=EPOCH_MS), 0.0)
    return model


def the_target(model: FleetModel, at: float) -> TargetFigures:
    (figures,) = model.figures(at).targets
    return figures


def the_worker(model: FleetModel, at: float) -> WorkerFigures:
    (figures,) = model.figures(at).workers
    return figures


def the_budget(model: FleetModel, at: float) -> BudgetFigures:
    (figures,) = model.figures(at).budgets
    return figures


def test_a_worker_that_is_refused_is_a_problem_in_the_words_of_its_card() -> None:
    model = FleetModel(0.0)
    model.on_asked(0.0)
    at = SILENT_SECONDS + 0.1
    for one in (card(), card("m", "metadata"), card("w2").model_copy(update={"targets": [], "problem": "no right"})):
        model.on_card(one, at)
    problems = [problem for problem in model.figures(at).problems if "refused" in problem]
    assert problems == ["The worker w2 is refused: no right"]


def test_a_worker_that_does_not_answer_is_silent_and_one_without_lease_is_lost_for_a_while(model: FleetModel) -> None:
    assert (the_worker(model, 5.0).condition, the_target(model, 5.0).workers) == (WorkerCondition.LIVE, None)
    model.on_asked(5.0)
    assert the_worker(model, 10.0).condition is WorkerCondition.SILENT
    assert the_target(model, 10.0).workers == 0
    model.on_card(card(), 10.0)
    seen = the_worker(model, 10.5)
    assert (seen.condition, seen.slots, seen.targets) == (WorkerCondition.LIVE, 4, ["echo"])
    assert (the_target(model, 10.5).workers, the_target(model, 10.5).slots) == (1, 4)
    model.on_card(card("g", "gateway"), 10.0 + SILENT_SECONDS)
    later = 10.0 + SILENT_SECONDS
    assert the_worker(model, later).condition is WorkerCondition.SILENT
    assert the_target(model, later).condition is TargetCondition.UNSERVED
    figures = model.figures(later)
    assert (len(figures.problems), len(figures.warnings)) == (3, 1), "no events, no metadata service, no worker"
    assert figures.answering == 1
    model.on_change(event(lost_workers=["w1-1"]), later)
    assert the_worker(model, later).condition is WorkerCondition.LOST
    assert model.figures(later + GONE_SECONDS).workers == []


def test_a_drained_worker_is_not_lost_when_it_ends(model: FleetModel) -> None:
    model.on_change(event(workers=[worker(drain=DrainState.DRAINED)]), 1.0)
    assert the_worker(model, 1.0).condition is WorkerCondition.DRAINING
    model.on_change(event(lost_workers=["w1-1"]), 2.0)
    assert model.figures(2.0).workers == []


def test_a_worker_that_a_state_no_longer_has_is_lost(model: FleetModel) -> None:
    model.on_state(FleetState(targets=[], workers=[], sessions=[], now=EPOCH_MS), 1.0)
    figures = model.figures(1.0)
    assert ([one.condition for one in figures.workers], figures.targets) == ([WorkerCondition.LOST], [])


def test_a_pause_ends_by_the_ledgers_clock_without_an_event(model: FleetModel) -> None:
    model.on_change(event(targets=[target(paused_until=EPOCH_MS + 5000)]), 1.0)
    assert the_target(model, 4.9).condition is TargetCondition.PAUSED
    assert the_target(model, 5.1).condition is TargetCondition.READY


def test_times_errors_and_tokens_are_those_of_the_window(model: FleetModel) -> None:
    counts = CallCounts(
        outcomes={"result": 99, "charged": 1},
        faults={"provider_error": 1},
        wait={0: 99},
        service={bucket_of(100): 90, bucket_of(2000): 9},
        input_tokens=7,
        output_tokens=3,
        cost_usd=0.5,
    )
    model.on_change(event(calls={"echo": counts}, queued={"echo": 12}), 30.0)
    model.on_change(event(calls={"echo": counts}), 30.0 + SLICE_SECONDS)
    seen = the_target(model, 60.0)
    assert seen.service is not None
    assert 100 <= seen.service.p50 <= 100 * BUCKET_BASE
    assert 2000 <= seen.service.p95 <= 2000 * BUCKET_BASE
    assert seen.wait is not None
    assert seen.wait.p95 <= 1
    assert (seen.faults, seen.input_tokens, seen.output_tokens, seen.cost_usd) == ({"provider_error": 2}, 14, 6, 1.0)
    assert (seen.calls_per_minute, seen.queued) == (200.0, 12)
    assert model.figures(60.0).queued == 12
    after = the_target(model, 31.0 + SLICE_SECONDS + WINDOW_SECONDS)
    assert (after.service, after.faults, after.calls_per_minute) == (None, {}, 0.0)


def test_a_budget_ends_at_the_rate_of_the_last_minute(model: FleetModel) -> None:
    for second in range(1, 31):
        model.on_change(event(sessions=[session(second)]), float(second))
    running = the_budget(model, 30.0)
    assert (running.used, running.calls_per_minute, running.is_spent) == (30, 60.0, False)
    assert running.ends_in_ms == 70_000
    model.on_change(event(sessions=[session(100)]), 31.0)
    spent = the_budget(model, 31.0)
    assert (spent.is_spent, spent.ends_in_ms) == (True, None)
    model.on_change(event(ended_sessions=["s1"]), 32.0)
    assert model.figures(32.0).budgets == []


def test_a_fleet_without_events_says_so(model: FleetModel) -> None:
    model.on_change(event(), 1.0)
    assert model.figures(1.0 + EVENTS_SECONDS - 0.1).problems == []
    assert len(model.figures(1.0 + EVENTS_SECONDS).problems) == 1
    watched = model.figures(1.0, ["the watcher's own"], ["its note"])
    assert (watched.problems, watched.notes) == (["the watcher's own"], ["its note"])


def test_events_before_the_first_state_count_calls_and_nothing_else() -> None:
    model = FleetModel(0.0)
    model.on_change(event(targets=[target("other")], calls={"echo": CallCounts(outcomes={"result": 3})}), 1.0)
    assert (model.is_known, model.figures(1.0).targets) == (False, [])
    model.on_state(FleetState(targets=[target()], workers=[], sessions=[], now=EPOCH_MS), 2.0)
    assert (model.is_known, the_target(model, 2.0).calls_per_minute) == (True, 90.0)


def test_a_fleet_without_a_metadata_service_or_a_worker_says_what_to_start(model: FleetModel) -> None:
    model.on_change(event(), 1.0)
    model.on_asked(1.0)
    assert model.figures(1.0 + SILENT_SECONDS - 0.1).problems == [], "they have time to answer"
    missing = model.figures(3.0).problems
    assert [("serve metadata" in one, "serve worker" in one) for one in missing] == [(True, False), (False, True)]
    assert "echo" in missing[1]
    model.on_card(card("m", "metadata"), 3.0)
    model.on_card(card("h", "host", served("bot", "leased")), 3.0)
    (unserved,) = model.figures(3.0).problems
    assert "serve worker" in unserved
    model.on_card(card(), 3.0)
    assert model.figures(3.0).problems == []


def test_services_alone_are_a_fleet_whose_ledger_is_not_known() -> None:
    model = FleetModel(0.0, clock_offset=EPOCH_MS / 1000, answer_seconds=0.2)
    model.on_asked(0.0)
    for one in (card("m", "metadata"), card("w1"), card("w2", "worker", served(paused_ms=9000), served("bot"))):
        model.on_card(one, 0.1)
    model.on_card(card("h", "host", served("bot", "leased")), 0.1)
    figures = model.figures(0.2)
    assert [(one.name, one.provider, one.workers, one.slots, one.running, one.limit) for one in figures.targets] == [
        *(("bot", "mock", 1, 4, 1, 4), ("bot", "leased", 1, 4, 1, 4), ("echo", "mock", 2, 8, 2, 8)),
    ]
    assert figures.targets[2].paused_until == EPOCH_MS + 9000
    assert [(one.worker_id, one.condition) for one in figures.workers] == [
        ("w1", WorkerCondition.LIVE),
        ("w2", WorkerCondition.LIVE),
    ]
    assert (figures.problems, figures.answering) == ([], 4)


def differing(since: int, now: int) -> FleetFigures:
    model = FleetModel(0.0)
    workers = {"f" * 32: ["old"], "e" * 32: ["new-1", "new-2"]}
    one = target(workers_by_fingerprint=workers, different_since=EPOCH_MS + since)
    model.on_state(FleetState(targets=[one], workers=[], sessions=[], now=EPOCH_MS + now), 0.0)
    return model.figures(0.0)


def test_workers_that_differ_are_a_warning_for_ten_minutes_and_then_a_problem() -> None:
    updating, lasting = differing(1000, 601_000), differing(1000, 602_000)
    assert [(len(one.problems), len(one.warnings)) for one in (updating, lasting)] == [(0, 1), (1, 0)]
    for text in (*updating.warnings, *lasting.problems):
        assert all(part in text for part in ("target echo", "old with ffffffff", "new-1, new-2 with eeeeeeee"))
    assert lasting.targets[0].different_ms == 601_000


def test_who_consumes_and_does_not_answer_is_a_problem() -> None:
    model = FleetModel(0.0, answer_seconds=0.0)
    model.on_asked(0.0)
    for one in (card("m", "metadata"), card(), card("h", "host", served("bot", "leased"))):
        model.on_card(one, 0.0)
    figures = model.figures(0.0)
    queues = ("quintain.target.echo", "quintain.metadata", "quintain.ledger.admit")
    assert consumer_problems(figures, dict.fromkeys(queues, 1)) == []
    assert consumer_problems(figures, {}) == []
    of_target, services = consumer_problems(figures, {**dict.fromkeys(queues, 2), "quintain.target.bot": 3})
    assert "target echo has 2 consumers, and 1 of its workers" in of_target
    assert "quintain.metadata, quintain.ledger.admit have" in services


def test_the_bucket_of_a_duration_is_the_first_that_holds_it() -> None:
    assert (bucket_of(0), bucket_of(1)) == (0, 0)
    for milliseconds in (1.01, 5, 99.5, 12_345):
        assert BUCKET_BASE ** (bucket_of(milliseconds) - 1) < milliseconds <= BUCKET_BASE ** bucket_of(milliseconds)


def test_values_in_words() -> None:
    assert [duration(value) for value in (None, 12.4, 1500, 90_000)] == ["-", "12 ms", "1.5 s", "1.5 min"]
    assert [amount(value) for value in (None, 9999, 12_000, 2_500_000)] == ["-", "9999", "12.0 k", "2.5 M"]
    assert errors({"a": 1, "b": 3, "c": 2, "d": 1, "e": 1}) == "3 × b, 2 × c, 1 × a, 2 others"
