"""A census: what is there held against what should be, over any number of services."""

from __future__ import annotations

from quintain.contracts.discovery import RegisteredTarget, ServedTarget, ServiceCard, TargetList
from quintain_cli.fleet.fleet_view import build_fleet_view, format_duration


def card(service: str, *targets: ServedTarget, name: str = "one") -> ServiceCard:
    return ServiceCard(service=service, id=name, instance=name, version="1", started_at=0, targets=list(targets))


def known(*names: str, paused_until: int | None = None) -> TargetList:
    targets = [
        RegisteredTarget(name=name, provider="openai", max_concurrency=8, running=2, paused_until=paused_until)
        for name in names
    ]
    return TargetList(targets=targets, now=1000)


def served(name: str, kind: str = "openai", *, paused_ms: int | None = None) -> ServedTarget:
    return ServedTarget(name=name, kind=kind, slots=4, in_flight=1, paused_ms=paused_ms)


def test_workers_of_one_target_are_added_up() -> None:
    cards = [card("metadata"), card("worker", served("a"), name="x"), card("worker", served("a"), name="y")]
    found = build_fleet_view(cards, known("a"))
    (row,) = found.targets
    assert (row.workers, row.slots, row.in_flight, row.most, row.running) == (2, 8, 2, 8, 2)
    assert found.problems == []


def test_a_registered_target_without_a_worker_is_a_problem_with_its_mend() -> None:
    found = build_fleet_view([card("metadata"), card("worker", served("a"))], known("a", "b"))
    assert [row.workers for row in found.targets] == [1, 0]
    (problem,) = found.problems
    assert "target b has no live worker" in problem
    assert "quintain serve worker" in problem


def test_a_fleet_without_a_metadata_service_is_unwell() -> None:
    (problem,) = build_fleet_view([card("worker", served("a"))], None).problems
    assert "quintain serve metadata" in problem


def test_what_nobody_could_say_is_neither_registered_nor_not() -> None:
    (row,) = build_fleet_view([card("metadata"), card("worker", served("a"))], None).targets
    assert row.registered is None
    (row,) = build_fleet_view([card("metadata"), card("worker", served("a"))], known()).targets
    assert row.registered is False


def test_a_target_that_is_leased_is_not_one_that_is_called() -> None:
    cards = [card("metadata"), card("host", served("bot", "leased"))]
    called, leased = build_fleet_view(cards, known("bot")).targets
    assert (called.kind, called.workers, leased.kind, leased.workers) == ("openai", 0, "leased", 1)
    assert build_fleet_view(cards, known()).problems == []


def test_the_longest_pause_counts() -> None:
    cards = [card("metadata"), card("worker", served("a", paused_ms=9000))]
    assert build_fleet_view(cards, known("a", paused_until=4000)).targets[0].paused_ms == 9000
    assert build_fleet_view([card("metadata")], known("a", paused_until=4000)).targets[0].paused_ms == 3000


def test_a_time_is_told_in_the_largest_unit_it_fills() -> None:
    assert [format_duration(seconds) for seconds in (0, 59, 60, 5400, 2 * 86400)] == [
        "0 s",
        "59 s",
        "1.0 min",
        "1.5 h",
        "2.0 d",
    ]


def differing(since: int, now: int) -> TargetList:
    workers = {"f" * 32: ["old"], "e" * 32: ["new-1", "new-2"]}
    target = RegisteredTarget(
        name="a", provider="openai", max_concurrency=8, workers_by_fingerprint=workers, different_since=since
    )
    return TargetList(targets=[target], now=now)


def test_workers_that_differ_are_a_warning_for_ten_minutes_and_then_a_problem() -> None:
    cards = [card("metadata"), card("worker", served("a"))]
    updating = build_fleet_view(cards, differing(1000, 601_000))
    assert (updating.problems, len(updating.warnings)) == ([], 1)
    lasting = build_fleet_view(cards, differing(1000, 601_001))
    assert (len(lasting.problems), lasting.warnings) == (1, [])
    for text in (*updating.warnings, *lasting.problems):
        assert all(part in text for part in ("target a", "old with ffffffff", "new-1, new-2 with eeeeeeee"))
    assert lasting.targets[0].different_ms == 600_001
