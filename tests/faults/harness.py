"""A fleet under load, and something that breaks: the same siege for every fault."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import quintain
from faults.ledger_books import Book, books_of
from quintain.client.client import Client
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.metadata import SessionOpened
from support.fleet import ProcessFleet
from support.hearing_bus import Evaluator, evaluator

#: A provider that works for a while and keeps its own count, outside of everything that is broken here. Every answer
#: of it is another one: two answers to one call cannot be taken for the same. Its ``TEST_DIES_IN_CALL``-th call kills
#: the worker it runs in.
BOT = """
import asyncio, itertools, os, pathlib, secrets, signal

COUNT = pathlib.Path(__file__).with_name("provider-count")
DIES, ASKED = int(os.environ.get("TEST_DIES_IN_CALL", "0")), itertools.count(1)
SECONDS = float(os.environ.get("TEST_BOT_SECONDS", "0.2"))


async def answer(request):
    with COUNT.open("a") as count:  # O_APPEND: one line is one write
        count.write(request.question + "\\n")
    if next(ASKED) == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(SECONDS)
    return f"answer {secrets.token_hex(4)} to {request.question}"
"""

#: How many calls the fleet runs at a time.
MOST_AT_ONCE = 8

CONFIG = f"""
targets:
  bot: {{provider: python, callable: "bot:answer", max_concurrency: {MOST_AT_ONCE}}}
"""

Strike = Callable[[ProcessFleet], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class Said:
    """What a caller was told, in the end: a result's text, or a fault's code."""

    text: str
    fault: bool = False
    charged: bool = True


@dataclasses.dataclass(frozen=True)
class Ending:
    """What a fault left behind: one line of the table."""

    fault: str
    calls: int
    answers: int
    charged: int
    refunded: int
    in_doubt: int
    attempts: int
    provider: int
    lost: int
    overspent: int


@dataclasses.dataclass(frozen=True)
class Aftermath:
    """Everything that is known when the dust has settled: what the callers were told, the books, the provider's count.

    ``said`` has each caller's word on each request id it asked; ``heard`` every reply that reached a caller, also
    those it no longer waited for; ``again`` what the same question was told once all was over.
    """

    fault: str
    max_calls: int
    session: SessionOpened
    said: dict[str, list[Said]]
    heard: dict[str, list[str]]
    again: dict[str, Said]
    info: quintain.Info
    books: dict[str, Book]
    provider: Counter[str]

    def ending(self) -> Ending:
        """As a line of the table."""
        answered = [request_id for request_id, told in self.said.items() if told and all(told)]
        return Ending(
            fault=self.fault,
            calls=len(self.said),
            answers=len(answered),
            charged=self.info.call_count,
            refunded=self.info.refunded,
            in_doubt=self.info.in_doubt,
            attempts=sum(book.granted for book in self.books.values()),
            provider=self.provider.total(),
            lost=len(self.said) - len(answered),
            overspent=max(0, self.info.call_count - self.max_calls),
        )

    def faults(self) -> Counter[str]:
        """How often each fault was told."""
        return Counter(said.text for told in self.said.values() for said in told if said.fault)


@dataclasses.dataclass
class Siege:
    """A fleet under load, the fault, and what is left of it.

    ``questions`` are their own request ids. The strike comes with the first answer, or at once.
    """

    fleet: ProcessFleet
    questions: Sequence[str]
    target: str = "bot"
    #: Whether each call names its target; otherwise the metadata service sends it on to the session's default.
    named: bool = False
    max_calls: int | None = None
    copies: int = 1
    deadline_seconds: float = 100.0
    at_once: bool = False
    #: A call that ends only by its caller's own deadline counts as lost, but where the operator lost it.
    may_expire: bool = False
    count: Callable[[], Counter[str]] | None = None

    async def run(self, fault: str, strike: Strike) -> Aftermath:
        """Send all calls, strike, wait for every answer, ask everything that was charged again, and look around."""
        most = len(self.questions) if self.max_calls is None else self.max_calls
        session = await asyncio.to_thread(self.fleet.open_session, self.target, most)
        before = asyncio.all_tasks()
        async with evaluator(self.fleet.broker_url, session.token) as asking:
            said = await self._ask_all(asking, strike)
            info = await settled(asking.client)
            again = await self._ask_again(asking.client, said)
            assert asking.caller.in_flight == 0, "a future is left over"
            heard = {request_id: list(words) for request_id, words in asking.heard.items()}
        await no_task_is_left(asyncio.all_tasks() - before)
        books = await books_of(self.fleet.ledger_url, session.session_id)
        return Aftermath(
            fault=fault,
            max_calls=most,
            session=session,
            said=said,
            heard=heard,
            again=again,
            info=info,
            books=books,
            provider=self.provider_count() if self.count is None else self.count(),
        )

    async def _ask_all(self, asking: Evaluator, strike: Strike) -> dict[str, list[Said]]:
        answered = asyncio.Event()
        calls = [
            asyncio.create_task(self._ask(asking.client, question, answered))
            for _ in range(self.copies)
            for question in self.questions
        ]
        if not self.at_once:
            await answered.wait()
        await strike(self.fleet)
        said: dict[str, list[Said]] = {question: [] for question in self.questions}
        for request_id, told in await asyncio.gather(*calls):
            if told is not None:
                said[request_id].append(told)
        return said

    async def _ask(self, client: Client, question: str, answered: asyncio.Event) -> tuple[str, Said | None]:
        told = await ask(client, self._request(question), deadline_seconds=self.deadline_seconds)
        answered.set()
        lost = told.text == quintain.Expired.code and not self.may_expire
        return question, None if lost else told

    async def _ask_again(self, client: Client, said: dict[str, list[Said]]) -> dict[str, Said]:
        """What everything that was charged is told now: the ledger's word, and no other call."""
        charged = [request_id for request_id, told in said.items() if told and told[0].charged]
        if self.may_expire:
            charged = [request_id for request_id in charged if said[request_id][0].text != quintain.Expired.code]
        asked = [self._request(request_id) for request_id in charged]
        told = await asyncio.gather(*(ask(client, request, deadline_seconds=30) for request in asked))
        return dict(zip(charged, told, strict=True))

    def _request(self, question: str) -> InvokeRequest:
        return InvokeRequest(question=question, target=self.target if self.named else None)

    def provider_count(self) -> Counter[str]:
        """How often the provider was asked each question, by its own count."""
        path = self.fleet.folder / "provider-count"
        return Counter(path.read_text().splitlines() if path.exists() else ())


async def nothing(_: ProcessFleet) -> None:
    """No strike at all."""


async def ask(client: Client, request: InvokeRequest, *, deadline_seconds: float) -> Said:
    """One call under its question as request id, and what came of it; what is full is asked again."""
    while True:
        try:
            result = await client.send(request, request_id=request.question, deadline_seconds=deadline_seconds)
        except quintain.Overloaded:
            await asyncio.sleep(0.2)
        except quintain.Fault as fault:
            return Said(fault.code, fault=True, charged=fault.charged)
        else:
            return Said(result.raw_text)


async def settled(target: Client) -> quintain.Info:
    """The session's counters once nothing runs any more."""
    async with asyncio.timeout(120):
        while (info := await target.get_info()).running:
            await asyncio.sleep(0.2)
    return info


async def no_task_is_left(tasks: set[asyncio.Task[Any]]) -> None:
    """The client's tasks end with it, within a second."""
    left = {task for task in tasks if not of_the_tests(task)}
    if left:
        _, left = await asyncio.wait(left, timeout=1)
    assert left == set(), "tasks are left over"


def of_the_tests(task: asyncio.Task[Any]) -> bool:
    """Whether a task is a test's own (a proxy's, a model server's), and none of the client's."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and "/tests/" in code.co_filename


def table(endings: list[Ending]) -> list[str]:
    """The endings as lines of a table."""
    names = [field.name for field in dataclasses.fields(Ending)]
    rows = [names, *([str(getattr(ending, name)) for name in names] for ending in endings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
