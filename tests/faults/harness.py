"""Breaking things on purpose, and what must hold afterwards: the same for every fault."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import quintain
from quintain.client.client import Client
from quintain.contracts.invoke import InvokeRequest
from quintain_metadata import audit
from quintain_metadata.sqlite import SqliteLedger
from support.fleet import ProcessFleet

#: A provider that works for a while and keeps its own count, outside of everything that is broken here.
BOT = """
import asyncio, os, pathlib

COUNT = pathlib.Path(__file__).with_name("provider-count")


async def answer(request):
    with COUNT.open("a") as count:  # O_APPEND: one line is one write
        count.write(request.question + "\\n")
    await asyncio.sleep(0.2)
    return "answer to " + request.question
"""

CONFIG = """
targets:
  bot: {provider: python, callable: "bot:answer", max_concurrency: 8}
"""


@dataclasses.dataclass(frozen=True)
class Ending:
    """What a fault left behind: one line of the table."""

    fault: str
    calls: int
    answers: int
    charged: int
    refunded: int
    in_doubt: int
    provider: int
    lost: int
    overspent: int


@dataclasses.dataclass
class Siege:
    """A fleet under load, the fault, and the reckoning."""

    fleet: ProcessFleet
    calls: int = 60
    max_calls: int = 60
    duplicates: int = 0

    async def run(self, fault: str, strike: Callable[[ProcessFleet], Awaitable[None]]) -> Ending:
        """Send all calls, strike when a few are answered, wait for every answer, and hold the books against it."""
        session = await asyncio.to_thread(self.fleet.open_session, "bot", self.max_calls)
        async with quintain.connect(self.fleet.broker_url, session.token) as target:
            some = asyncio.Event()
            asked = [
                asyncio.create_task(ask(target, f"q{number}", some))
                for copy in range(1 + self.duplicates)
                for number in range(self.calls)
            ]
            await some.wait()
            await strike(self.fleet)
            answers = await asyncio.gather(*asked)
            info = await settled(target)
        counts = Counter(self.provider_asked())
        named = [answer for answer in answers if answer is not None]
        by_question: dict[str, set[str]] = {}
        for question, text in named:
            by_question.setdefault(question, set()).add(text)
        assert all(len(texts) == 1 for texts in by_question.values()), "one call, two different answers"
        return Ending(
            fault=fault,
            calls=self.calls,
            answers=len(by_question),
            charged=info.call_count,
            refunded=info.refunded,
            in_doubt=info.in_doubt,
            provider=sum(counts.values()),
            lost=self.calls - len(by_question),
            overspent=max(0, info.call_count - self.max_calls),
        )

    def provider_asked(self) -> list[str]:
        """Every question the provider was asked, by its own count."""
        return (self.fleet.folder / "provider-count").read_text().splitlines()


async def ask(target: Client, question: str, answered: asyncio.Event) -> tuple[str, str] | None:
    """One call under its own request id; what came of it as text. None where the SDK had to give up."""
    try:
        result = await target.send(InvokeRequest(question=question), request_id=question, deadline_seconds=100)
    except quintain.Fault as fault:
        return None if isinstance(fault, quintain.Expired) else (question, fault.code)
    answered.set()
    return question, result.raw_text


async def settled(target: Client) -> quintain.Info:
    """The session's counters once nothing runs any more."""
    async with asyncio.timeout(60):
        while (info := await target.get_info()).running:
            await asyncio.sleep(0.2)
    return info


async def audited(folder: Path) -> audit.Audit:
    """The ledger's own verdict on itself, after its service is gone."""
    ledger = SqliteLedger(str(folder / "state" / "ledger.sqlite3"), asyncio.get_running_loop())
    try:
        return await ledger.do(lambda _: audit.verify())
    finally:
        await ledger.close()


def table(endings: list[Ending]) -> list[str]:
    """The endings as lines of a table."""
    names = [field.name for field in dataclasses.fields(Ending)]
    rows = [names, *([str(getattr(ending, name)) for name in names] for ending in endings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def to_json(endings: list[Ending]) -> str:
    """The endings for a file."""
    return json.dumps([dataclasses.asdict(ending) for ending in endings], indent=2)
