"""The state of the fleet: service cards compared with the targets of the ledger, and its tables for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from pydantic import Field
from rich.table import Table
from rich.text import Text

from quintain.contracts.discovery import ServedTarget, ServiceCard, TargetList
from quintain.contracts.message import Message
from quintain_cli.console import escape_for_terminal, print_stderr, stdout_console

#: Workers of a target may differ for so long, as they do while they are replaced one after the other.
ROLLING_UPDATE_SECONDS = 600

#: So many characters of a fingerprint are shown.
FINGERPRINT_CHARACTERS = 8

#: The kind of targets that hosts lease; they are not called through a queue.
LEASED_KIND = "leased"


class TargetRow(Message):
    """A target and what serves it.

    ``workers`` counts the workers that serve it or the hosts that lease it, and ``slots`` and ``in_flight`` are their
    sums. ``most`` is the limit of concurrent calls in the ledger, ``running`` how many run now, and ``paused_ms`` the
    rest of a pause in milliseconds. ``workers_by_fingerprint`` are the workers' ids by the fingerprint of their
    configuration, and ``different_ms`` is for how long there have been several. ``registered`` is None if the ledger
    was not read.
    """

    name: str
    kind: str
    registered: bool | None = None
    workers: int = 0
    slots: int = 0
    in_flight: int = 0
    most: int | None = None
    running: int | None = None
    paused_ms: int | None = None
    workers_by_fingerprint: dict[str, list[str]] | None = None
    different_ms: int | None = None


class FleetView(Message):
    """The services and targets of a fleet.

    ``problems`` says what is wrong and what to do about it; ``warnings`` says what becomes a problem if it lasts;
    ``notes`` says what could not be determined.
    """

    services: list[ServiceCard]
    targets: list[TargetRow]
    problems: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


def build_fleet_view(
    cards: Sequence[ServiceCard], registered: TargetList | None, notes: Iterable[str] = ()
) -> FleetView:
    """Combine service cards with the registered targets; ``registered`` is None if the ledger was not read."""
    rows = {(row.name, row.kind == LEASED_KIND): row for row in _registered_rows(registered)}
    is_registered = None if registered is None else False
    for card in cards:
        for served_target in card.targets:
            key = (served_target.name, served_target.kind == LEASED_KIND)
            current = rows.get(key) or TargetRow(
                name=served_target.name,
                kind=served_target.kind,
                registered=None if served_target.kind == LEASED_KIND else is_registered,
            )
            rows[key] = _add_served_target(current, served_target)
    targets = [rows[key] for key in sorted(rows)]
    different = [row for row in targets if row.different_ms is not None]
    lasting = [row for row in different if (row.different_ms or 0) > ROLLING_UPDATE_SECONDS * 1000]
    return FleetView(
        services=list(cards),
        targets=targets,
        problems=[*_find_problems(cards, targets), *map(_difference_text, lasting)],
        warnings=[_difference_text(row) for row in different if row not in lasting],
        notes=list(notes),
    )


def _registered_rows(registered: TargetList | None) -> Iterable[TargetRow]:
    if registered is None:
        return
    for target in registered.targets:
        yield TargetRow(
            name=target.name,
            kind=target.provider,
            registered=True,
            most=target.max_concurrency,
            running=target.running,
            paused_ms=None if target.paused_until is None else max(0, target.paused_until - registered.now),
            workers_by_fingerprint=target.workers_by_fingerprint,
            different_ms=None if target.different_since is None else max(0, registered.now - target.different_since),
        )


def _add_served_target(row: TargetRow, served_target: ServedTarget) -> TargetRow:
    pause_times_ms = [ms for ms in (row.paused_ms, served_target.paused_ms) if ms is not None]
    return row.model_copy(
        update={
            "workers": row.workers + 1,
            "slots": row.slots + served_target.slots,
            "in_flight": row.in_flight + served_target.in_flight,
            "paused_ms": max(pause_times_ms, default=None),
        }
    )


def _find_problems(cards: Sequence[ServiceCard], targets: Sequence[TargetRow]) -> list[str]:
    problems = []
    if not any(card.service == "metadata" for card in cards):
        problems.append("no metadata service answers: start one with `quintain serve metadata`")
    problems += [
        f"target {row.name} has no live worker: start one with `quintain serve worker` where its configuration is"
        for row in targets
        if row.registered and not row.workers
    ]
    return problems


def _difference_text(row: TargetRow) -> str:
    groups = (
        f"{', '.join(workers)} with {fingerprint[:FINGERPRINT_CHARACTERS]}"
        for fingerprint, workers in (row.workers_by_fingerprint or {}).items()
    )
    duration = format_duration((row.different_ms or 0) / 1000)
    return (
        f"workers have served target {row.name} with different configurations for {duration}: "
        f"{'; '.join(groups)}: start the workers with the older configuration again, or list the keys that may differ "
        "in replica_fields"
    )


MINUTE_SECONDS, HOUR_SECONDS, DAY_SECONDS = 60, 3600, 86400


def print_fleet_view(view: FleetView) -> None:
    """Print the tables to standard output, and notes and problems to standard error."""
    if view.services:
        stdout_console().print(_services_table(view.services))
    if view.targets:
        stdout_console().print(_targets_table(view.targets))
    for note in view.notes:
        print_stderr(f"note     {escape_for_terminal(note)}")
    for warning in view.warnings:
        print_stderr(f"warning  {escape_for_terminal(warning)}")
    for problem in view.problems:
        print_stderr(f"problem  {escape_for_terminal(problem)}")
    if not view.problems:
        print_stderr(f"well     {len(view.services)} services answer, and no target was found without a worker")


def _services_table(cards: list[ServiceCard]) -> Table:
    table = _empty_table("service", "id", "version", "up", "in flight", "heartbeat", "serves")
    for card in cards:
        slots = "" if card.slots is None else f" of {card.slots}"
        uptime = format_duration(max(0.0, time.time() - card.started_at / 1000))
        heartbeat_age = "-" if card.heartbeat_age_ms is None else f"{card.heartbeat_age_ms / 1000:.1f} s ago"
        served_names = ", ".join(target.name for target in card.targets) or card.ledger or "-"
        _add_row(
            table, card.service, card.id, card.version, uptime, f"{card.in_flight}{slots}", heartbeat_age, served_names
        )
    return table


def _targets_table(rows: list[TargetRow]) -> Table:
    table = _empty_table("target", "kind", "served by", "in flight", "at most", "paused")
    for row in rows:
        provider_noun = "host" if row.kind == LEASED_KIND else "worker"
        served_by = f"{row.workers} {provider_noun}{'' if row.workers == 1 else 's'}" if row.workers else "none"
        running = row.in_flight if row.running is None else row.running
        max_running = row.slots if row.most is None else row.most
        paused = "-" if row.paused_ms is None else f"for {format_duration(row.paused_ms / 1000)}"
        _add_row(table, row.name, row.kind, served_by, str(running), str(max_running), paused)
    return table


def format_duration(seconds: float) -> str:
    """Format a duration in the largest unit that it fills, such as ``1.5 h``."""
    for unit_seconds, unit in ((DAY_SECONDS, "d"), (HOUR_SECONDS, "h"), (MINUTE_SECONDS, "min")):
        if seconds >= unit_seconds:
            return f"{seconds / unit_seconds:.1f} {unit}"
    return f"{seconds:.0f} s"


def _empty_table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _add_row(table: Table, *cells: str) -> None:
    # The text of a service card is untrusted.
    table.add_row(*(Text(escape_for_terminal(cell).replace("\n", "\\n").replace("\t", "\\t")) for cell in cells))
