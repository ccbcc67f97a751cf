"""The model of the fleet: which services are silent, and the figures of its targets, workers and budgets."""

from __future__ import annotations

import dataclasses

import pytest

from quintain.bus.base import QueueCount
from quintain.contracts.fleet import QuotaList, QuotaState, RegisteredTarget
from quintain.contracts.fleet_figures import (
    BudgetFigures,
    FleetFigures,
    TargetCondition,
    TargetFigures,
    WorkerCondition,
)
from quintain.contracts.ledger import DrainState
from quintain.contracts.service_card import CallCounts, ServedTarget, ServiceCard
from quintain.contracts.session import CostUsage, RegisteredWorker, SessionState
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.fleet_model import GONE_SECONDS, MAX_OPEN_CARDS, FleetModel, FleetRows

EPOCH_MS = 1_700_000_000_000

BEAT, SILENT = DEFAULT_TIMINGS.heartbeat_seconds, DEFAULT_TIMINGS.silent_seconds


def target(name: str = "echo", **fields: object) -> RegisteredTarget:
    return RegisteredTarget(name=name, provider="mock", max_concurrency=4).model_copy(update=fields)


def worker(name: str = "w1", drain: DrainState = DrainState.SUPPORTED) -> RegisteredWorker:
    return RegisteredWorker(worker_id=name, incarnation=f"{name}-1", lease_until=0, drain=drain, running=1)


def budget(used: int, **fields: object) -> BudgetFigures:
    one = BudgetFigures(
        session_id="s1",
        default_target="echo",
        used=used,
        max_calls=100,
        state=SessionState.OPEN,
        is_spent=used >= 100,
    )
    return one.model_copy(update=fields)


def served(name: str = "echo", kind: str = "mock", **fields: object) -> ServedTarget:
    return ServedTarget(name=name, kind=kind, slots=4, in_flight=1).model_copy(update=fields)


def card(name: str = "w1", service: str = "worker", *targets: ServedTarget, **fields: object) -> ServiceCard:
    found = targets or ((served(),) if service == "worker" else ())
    one = ServiceCard(
        service=service, id=name, instance=name, version="1", started_at=0, slots=4, in_flight=2, targets=list(found)
    )
    return one.model_copy(update=fields)


def rows(**fields: object) -> FleetRows:
    one = FleetRows(targets=[target()], workers=[worker()], lost=[], budgets=[], now=EPOCH_MS)
    return dataclasses.replace(one, **fields)  # type: ignore[arg-type]


def look(
    model: FleetModel,
    at: float,
    found: FleetRows | None = None,
    queues: dict[str, QueueCount] | None = None,
    quotas: list[QuotaState] | None = None,
) -> FleetFigures:
    return model.figures(found or rows(), QuotaList(quotas=quotas or [], now=EPOCH_MS), queues or {}, at)


def beat(model: FleetModel, until: float, *cards: ServiceCard, since: float = 0.0) -> None:
    """Let the metadata service hear itself and these services at every interval."""
    at = since
    while at <= until:
        for one in (card("m", "metadata"), *cards):
            model.on_card(one, at)
        at += BEAT


def condition(figures: FleetFigures) -> WorkerCondition:
    (one,) = figures.workers
    return one.condition


def the_target(figures: FleetFigures) -> TargetFigures:
    (one,) = figures.targets
    return one


@pytest.fixture
def model() -> FleetModel:
    return FleetModel("m")


def test_a_worker_that_is_not_heard_is_silent_after_5_s_and_one_without_lease_is_lost(model: FleetModel) -> None:
    beat(model, 10.0, card())
    beat(model, 16.0, since=12.0)
    assert condition(look(model, 10.0 + SILENT - 0.1)) is WorkerCondition.LIVE
    figures = look(model, 10.0 + SILENT)
    assert condition(figures) is WorkerCondition.SILENT
    assert (the_target(figures).condition, the_target(figures).workers) == (TargetCondition.UNSERVED, 0)
    assert ("echo" in figures.problems[0], len(figures.warnings), figures.answering) == (True, 1, 1)
    beat(model, 17.0, card(), since=17.0)
    assert condition(look(model, 17.0)) is WorkerCondition.LIVE
    assert condition(look(model, 17.0, rows(workers=[], lost=[worker()]))) is WorkerCondition.LOST


def test_a_metadata_service_that_reads_late_takes_nobody_for_silent(model: FleetModel) -> None:
    beat(model, 10.0, card())
    # For 20 s it reads nothing, also not its own heartbeats; then all at once, its own first.
    assert condition(look(model, 30.0)) is WorkerCondition.LIVE
    model.on_card(card("m", "metadata"), 30.1)
    model.on_card(card(), 30.1)
    assert condition(look(model, 30.1)) is WorkerCondition.LIVE


def test_a_metadata_service_that_has_just_started_says_of_nobody_that_it_is_missing(model: FleetModel) -> None:
    model.on_card(card("m", "metadata"), 0.0)
    figures = look(model, BEAT)
    assert (condition(figures), the_target(figures).workers) == (WorkerCondition.LIVE, None)
    assert figures.problems == []
    model.on_card(card("m", "metadata"), BEAT)
    figures = look(model, 2 * BEAT)
    assert (condition(figures), the_target(figures).workers) == (WorkerCondition.SILENT, 0)
    assert ["serve worker" in problem for problem in figures.problems] == [True]


def test_a_worker_that_is_refused_is_a_problem_in_the_words_of_its_card(model: FleetModel) -> None:
    beat(model, 10.0, card(), card("w2", targets=[], problem="no right"))
    assert look(model, 10.0).problems == ["The worker w2 is refused: no right"]


def test_a_draining_worker_says_so_and_shows_what_its_card_says(model: FleetModel) -> None:
    beat(model, 10.0, card(longest_call_ms=70_000))
    (seen,) = look(model, 10.0, rows(workers=[worker(drain=DrainState.DRAINING)])).workers
    assert (seen.condition, seen.slots, seen.targets, seen.longest_call_ms, seen.running) == (
        *(WorkerCondition.DRAINING, 4, ["echo"], 70_000, 1),
    )


def test_a_pause_ends_by_the_ledgers_clock(model: FleetModel) -> None:
    beat(model, 10.0, card())
    paused = target(paused_until=EPOCH_MS + 5000)
    assert the_target(look(model, 10.0, rows(targets=[paused]))).condition is TargetCondition.PAUSED
    assert the_target(look(model, 10.0, rows(targets=[paused], now=EPOCH_MS + 5001))).condition is TargetCondition.READY


def test_calls_are_the_sums_of_all_metadata_services_whichever_answers(model: FleetModel) -> None:
    counts = CallCounts(
        per_minute=6, faults={"x": 1}, wait={0: 9}, service={49: 9}, input_tokens=7, output_tokens=3, cost_usd=0.5
    )
    beat(
        model,
        10.0,
        card(),
        card("m2", "metadata", calls={"echo": counts}),
        card("m3", "metadata", calls={"echo": counts}),
    )
    queues = {"quintain.target.echo": QueueCount(7, 1), "quintain.target.echo/backlog": QueueCount(5, 1)}
    figures = look(model, 10.0, queues=queues)
    seen = the_target(figures)
    assert (seen.calls_per_minute, seen.faults, seen.input_tokens, seen.output_tokens, seen.cost_usd) == (
        *(12.0, {"x": 2}, 14, 6, 1.0),
    )
    assert seen.service is not None
    assert 100 <= seen.service.p50 <= 110
    assert (seen.queued, figures.queued, figures.calls_per_minute) == (12, 12, 12.0)
    # One that is silent did count these calls.
    beat(model, 18.0, card(), since=12.0)
    assert the_target(look(model, 18.0)).calls_per_minute == 12.0
    assert the_target(look(model, 10.0 + GONE_SECONDS)).calls_per_minute == 0.0


def test_a_budget_ends_at_the_rate_of_the_last_minute(model: FleetModel) -> None:
    for second in range(31):
        figures = look(model, float(second), rows(budgets=[budget(second)]))
    (running,) = figures.budgets
    assert (running.used, running.calls_per_minute, running.is_spent, running.ends_in_ms) == (30, 60.0, False, 70_000)
    (spent,) = look(model, 31.0, rows(budgets=[budget(100)])).budgets
    assert (spent.is_spent, spent.ends_in_ms) == (True, None)


@pytest.mark.parametrize(("spent", "warn_at", "warned"), [(7.0, 0.8, 0), (7.9, 0.8, 1), (9.0, None, 0)])
def test_a_session_says_when_the_part_of_its_money_is_used_that_was_asked_for(
    model: FleetModel, spent: float, warn_at: float | None, warned: int
) -> None:
    cost = CostUsage(spent_usd=spent, held_usd=0.1, reserved_usd=1)
    one = budget(1, max_cost_usd=10.0, warn_at=warn_at, cost=cost, label="nightly")
    found = [text for text in look(model, 0.0, rows(budgets=[one])).warnings if "nightly" in text]
    assert len(found) == warned


def test_leased_targets_are_those_of_the_hosts_that_are_heard(model: FleetModel) -> None:
    beat(model, 10.0, card(), *(card(name, "host", served("echo", "leased")) for name in ("h1", "h2")))
    figures = look(model, 10.0)
    assert [(one.name, one.provider, one.workers, one.slots, one.running) for one in figures.targets] == [
        ("echo", "mock", 1, 4, 0),
        ("echo", "leased", 2, 8, 2),
    ]
    assert [(one.service, one.id, one.is_silent) for one in figures.services] == [
        *(("host", "h1", False), ("host", "h2", False), ("metadata", "m", False)),
    ]
    assert figures.problems == []
    beat(model, 18.0, since=12.0)
    assert [one.is_silent for one in look(model, 18.0).services] == [True, True, False]


def test_workers_that_differ_are_a_warning_for_ten_minutes_and_then_a_problem(model: FleetModel) -> None:
    beat(model, 10.0, card())
    workers = {"f" * 32: ["old"], "e" * 32: ["new-1", "new-2"]}
    one = target(workers_by_fingerprint=workers, different_since=EPOCH_MS + 1000)
    updating = look(model, 10.0, rows(targets=[one], now=EPOCH_MS + 601_000))
    lasting = look(model, 10.0, rows(targets=[one], now=EPOCH_MS + 602_000))
    assert [(len(each.problems), len(each.warnings)) for each in (updating, lasting)] == [(0, 1), (1, 0)]
    for text in (*updating.warnings, *lasting.problems):
        assert all(part in text for part in ("target echo", "old with ffffffff", "new-1, new-2 with eeeeeeee"))
    assert the_target(lasting).different_ms == 601_000


def test_who_consumes_and_does_not_answer_is_a_problem(model: FleetModel) -> None:
    beat(model, 10.0, card(), card("h", "host", served("bot", "leased")))
    names = ("quintain.target.echo", "quintain.metadata", "quintain.ledger.admit")
    assert look(model, 10.0, queues=dict.fromkeys(names, QueueCount(0, 1))).problems == []
    counts = dict.fromkeys(names, QueueCount(0, 2)) | {"quintain.target.bot": QueueCount(0, 3)}
    of_target, services = look(model, 10.0, queues=counts).problems
    assert "target echo has 2 consumers, and 1 of its workers" in of_target
    assert "quintain.metadata, quintain.ledger.admit have" in services


def test_the_cards_that_anybody_may_send_are_bounded_and_hide_no_worker(model: FleetModel) -> None:
    for number in range(MAX_OPEN_CARDS + 5):
        model.on_card(card(f"g{number}", "gateway"), 10.0)
    beat(model, 12.0, card())
    figures = look(model, 12.0)
    assert (len(figures.services), condition(figures)) == (MAX_OPEN_CARDS + 1, WorkerCondition.LIVE)
