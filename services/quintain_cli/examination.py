"""What `quintain doctor` looks at, one line each: the broker, what is declared there, the ledger."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from quintain.bus.broker_url import shown
from quintain.bus.rabbit_inspection import Found, Inspection, Standing, inspecting
from quintain.contracts.message import Message
from quintain.errors import BudgetUnavailable, BusError, ConfigError
from quintain.settings import Settings
from quintain.topology import DISCOVERY, METADATA_TOPOLOGY, Exchange, Queue, target_queue
from quintain_cli.state import has_kept_ledger, ledger_url
from quintain_metadata import VERSION, snapshot_of, target_names
from quintain_metadata import shown as shown_ledger

#: RabbitMQ's versions that the suite was run on, the oldest and the newest.
OLDEST, NEWEST = (3, 10), (4, 2)

Verdict = Literal["ok", "note", "warn", "fail"]


class Line(Message):
    """One thing looked at: what of it, how it stands, and what mends it where it does not."""

    what: str
    verdict: Verdict
    says: str
    mend: str | None = None


class Examination(Message):
    """All of it, in the order in which it was looked at."""

    lines: list[Line] = Field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether something is to be mended before anything works."""
        return any(line.verdict == "fail" for line in self.lines)


async def examine(settings: Settings, url: str, *, timeout_seconds: float) -> Examination:
    """Look at everything that can be reached from here."""
    lines, targets = await _ledger(settings)
    try:
        async with inspecting(url, timeout_seconds=timeout_seconds) as inspection:
            lines = [Line(what="broker", verdict="ok", says=shown(url)), *await _broker(inspection, targets), *lines]
    except BusError as error:
        mend = "start a broker, or set QUINTAIN_BROKER_URL to one that runs"
        lines = [Line(what="broker", verdict="fail", says=error.message, mend=mend), *lines]
    return Examination(lines=lines)


async def _broker(inspection: Inspection, targets: Iterable[str]) -> list[Line]:
    lines = [version_line(await inspection.version()), _CONSUMER_TIMEOUT]
    things: list[Exchange | Queue] = [*METADATA_TOPOLOGY.exchanges, DISCOVERY, *METADATA_TOPOLOGY.queues]
    things += [target_queue(name) for name in targets]
    return lines + [declared_line(await inspection.look(thing)) for thing in things]


#: The broker tells no client of it.
_CONSUMER_TIMEOUT = Line(
    what="consumer timeout",
    verdict="note",
    says="RabbitMQ does not tell it here; calls last up to 25 min, its default is 30",
    mend="where rabbitmq.conf sets consumer_timeout, let it be 1800000 (ms) or more",
)


def version_line(version: str) -> Line:
    """The broker's version against those that the suite was run on."""
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else None
    if number is None or number > NEWEST:
        mend = f"nothing is known against it; the suite runs on {_dotted(OLDEST)} to {_dotted(NEWEST)}"
        return Line(what="version", verdict="warn", says=f"RabbitMQ {version}", mend=mend)
    if number < OLDEST:
        return Line(what="version", verdict="fail", says=f"RabbitMQ {version}", mend=f"take {_dotted(OLDEST)} or newer")
    return Line(what="version", verdict="ok", says=f"RabbitMQ {version}")


def declared_line(found: Found) -> Line:
    """A thing of the protocol's as it stands at the broker."""
    if found.standing is Standing.SAME:
        return Line(what=found.name, verdict="ok", says="as the protocol has it")
    if found.standing is Standing.MISSING:
        mend = "the first service that needs it makes it: `quintain serve metadata`"
        return Line(what=found.name, verdict="warn", says="not there yet", mend=mend)
    if found.standing is Standing.HIDDEN:
        mend = "ask with a user who may configure it, to compare its arguments"
        return Line(what=found.name, verdict="warn", says=found.said, mend=mend)
    mend = "empty and delete it, and a service makes it anew; what you tune goes into a policy"
    return Line(what=found.name, verdict="fail", says=found.said, mend=mend)


async def _ledger(settings: Settings) -> tuple[list[Line], list[str]]:
    """The ledger's line, and the targets it knows."""
    url = ledger_url(settings)
    if settings.ledger_url is None and not has_kept_ledger(settings):
        says = "not looked at: QUINTAIN_LEDGER_URL is not set, and the state folder has none"
        return [Line(what="ledger", verdict="note", says=says, mend="ask where the metadata service runs")], []
    try:
        async with snapshot_of(url) as snapshot:
            version = await snapshot.version()
            targets = await snapshot.read(target_names()) if version else []
    except (ConfigError, BudgetUnavailable) as error:
        mend = "QUINTAIN_LEDGER_URL names it, as the metadata service has it"
        return [Line(what="ledger", verdict="fail", says=error.message, mend=mend)], []
    says = f"{shown_ledger(url)}, schema {version}"
    if version < VERSION:
        mend = f"this release makes it {VERSION} when its metadata service starts"
        return [Line(what="ledger", verdict="warn", says=says, mend=mend)], targets
    if version > VERSION:
        mend = f"this release knows {VERSION}: upgrade quintain"
        return [Line(what="ledger", verdict="fail", says=says, mend=mend)], targets
    return [Line(what="ledger", verdict="ok", says=says)], targets


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
