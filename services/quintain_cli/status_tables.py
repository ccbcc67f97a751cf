"""A census for a terminal: the services, the targets, what is missing and what to do next."""

from __future__ import annotations

import time

from rich.table import Table
from rich.text import Text

from quintain.contracts.discovery import ServiceCard
from quintain_cli.census import LEASED, Census, TargetRow
from quintain_cli.screen import out, plain, tell

MINUTE, HOUR, DAY = 60, 3600, 86400


def show(found: Census) -> None:
    """Print it: tables on standard output, words on the other."""
    if found.services:
        out().print(_services(found.services))
    if found.targets:
        out().print(_targets(found.targets))
    for note in found.notes:
        tell(f"note     {plain(note)}")
    for problem in found.problems:
        tell(f"problem  {plain(problem)}")
    if not found.problems:
        tell(f"well     {len(found.services)} services answer, and no target was found without a worker")


def _services(cards: list[ServiceCard]) -> Table:
    table = _table("service", "id", "version", "up", "in flight", "heartbeat", "serves")
    for card in cards:
        slots = "" if card.slots is None else f" of {card.slots}"
        up = lasting(max(0.0, time.time() - card.started_at / 1000))
        beat = "-" if card.heartbeat_age_ms is None else f"{card.heartbeat_age_ms / 1000:.1f} s ago"
        serves = ", ".join(target.name for target in card.targets) or card.ledger or "-"
        _row(table, card.service, card.id, card.version, up, f"{card.in_flight}{slots}", beat, serves)
    return table


def _targets(rows: list[TargetRow]) -> Table:
    table = _table("target", "kind", "served by", "in flight", "at most", "paused")
    for row in rows:
        who = "host" if row.kind == LEASED else "worker"
        served = f"{row.workers} {who}{'' if row.workers == 1 else 's'}" if row.workers else "nobody"
        running = row.in_flight if row.running is None else row.running
        most = row.slots if row.most is None else row.most
        paused = "-" if row.paused_ms is None else f"for {lasting(row.paused_ms / 1000)}"
        _row(table, row.name, row.kind, served, str(running), str(most), paused)
    return table


def lasting(seconds: float) -> str:
    """A time for people, in the largest unit it fills."""
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    # What a service says of itself is anybody's text.
    table.add_row(*(Text(plain(cell).replace("\n", "\\n").replace("\t", "\\t")) for cell in cells))
