"""What is there and what should be, held against each other: the services' cards and the ledger's targets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from quintain.contracts.discovery import ServedTarget, ServiceCard, TargetList
from quintain.contracts.message import Message

#: What a host's targets are: leased out whole, and not called.
LEASED = "leased"


class TargetRow(Message):
    """A target over the fleet. ``workers`` serve it, or hosts lease it out; ``slots`` and ``in_flight`` are theirs
    together; ``most`` is what the ledger lets run at once, ``running`` what does. ``registered`` is None where nobody
    could say."""

    name: str
    kind: str
    registered: bool | None = None
    workers: int = 0
    slots: int = 0
    in_flight: int = 0
    most: int | None = None
    running: int | None = None
    paused_ms: int | None = None


class Census(Message):
    """The fleet. ``problems`` are what makes it unwell, each with what to do next; ``notes`` what cannot be said."""

    services: list[ServiceCard]
    targets: list[TargetRow]
    problems: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


def census_of(cards: Sequence[ServiceCard], registered: TargetList | None, notes: Iterable[str] = ()) -> Census:
    """The fleet of these cards; ``registered`` is None where the ledger was not asked, or did not answer."""
    rows = {(row.name, row.kind == LEASED): row for row in _registered(registered)}
    known = None if registered is None else False
    for card in cards:
        for served in card.targets:
            key = (served.name, served.kind == LEASED)
            before = rows.get(key) or TargetRow(
                name=served.name, kind=served.kind, registered=None if served.kind == LEASED else known
            )
            rows[key] = _joined(before, served)
    targets = [rows[key] for key in sorted(rows)]
    return Census(services=list(cards), targets=targets, problems=_problems(cards, targets), notes=list(notes))


def _registered(registered: TargetList | None) -> Iterable[TargetRow]:
    if registered is None:
        return
    for one in registered.targets:
        yield TargetRow(
            name=one.name,
            kind=one.provider,
            registered=True,
            most=one.max_concurrency,
            running=one.running,
            paused_ms=None if one.paused_until is None else max(0, one.paused_until - registered.now),
        )


def _joined(row: TargetRow, served: ServedTarget) -> TargetRow:
    paused = [ms for ms in (row.paused_ms, served.paused_ms) if ms is not None]
    return row.model_copy(
        update={
            "workers": row.workers + 1,
            "slots": row.slots + served.slots,
            "in_flight": row.in_flight + served.in_flight,
            "paused_ms": max(paused, default=None),
        }
    )


def _problems(cards: Sequence[ServiceCard], targets: Sequence[TargetRow]) -> list[str]:
    problems = []
    if not any(card.service == "metadata" for card in cards):
        problems.append("no metadata service answers: start one with `quintain serve metadata`")
    problems += [
        f"target {row.name} has no live worker: start one with `quintain serve worker` where its configuration is"
        for row in targets
        if row.registered and not row.workers
    ]
    return problems
