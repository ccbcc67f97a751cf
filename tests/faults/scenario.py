"""A fleet under load, and something that breaks: the same scenario for every fault."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import quintain
from faults.ledger_calls import LedgerCall, read_calls
from faults.load import CallTimes, Load
from quintain.client.client import Client
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.session import SessionOpened
from support.process_fleet import Process, ProcessFleet
from support.recording_bus import RecordingClient, recording_client

#: A provider that works for a while and keeps its own count, outside of everything that is broken here. Every answer
#: of it is another one: two answers to one call cannot be taken for the same. Its ``TEST_DIES_IN_CALL``-th call kills
#: the worker whose process it runs in.
BOT = """
import asyncio, itertools, os, pathlib, secrets, signal

COUNT = pathlib.Path(__file__).with_name("provider-count")
DIES, ASKED = int(os.environ["TEST_DIES_IN_CALL"]), itertools.count(1)
SECONDS = float(os.environ["TEST_BOT_SECONDS"])


async def answer(request):
    with COUNT.open("a") as count:  # O_APPEND: one line is one write
        count.write(request.question + "\\n")
    if next(ASKED) == DIES:
        os.kill(os.getppid(), signal.SIGKILL)
    await asyncio.sleep(SECONDS)
    return f"answer {secrets.token_hex(4)} to {request.question}"
"""

#: How many calls the fleet runs at a time.
MAX_CONCURRENCY = 8


#: The variables of the worker that `BOT` gets.
ENV = """
    env: {TEST_DIES_IN_CALL: "${{ TEST_DIES_IN_CALL:-0 }}", TEST_BOT_SECONDS: "${{ TEST_BOT_SECONDS:-0.2 }}"}
    replica_fields: [env]
"""


def config_with_limit(limit: int) -> str:
    """A configuration of one target that runs so many calls at a time."""
    return f"targets:\n  bot:\n    provider: python\n    callable: bot:answer\n    max_concurrency: {limit}{ENV}"


CONFIG = config_with_limit(MAX_CONCURRENCY)

#: Under load, every call of a session is a new one, and none is refused for want of budget.
LOAD_MAX_CALLS = 1_000_000

#: How many calls are asked again at most when all is over, and how many of them at a time.
ASKED_AGAIN, ASKED_AT_A_TIME = 2_000, 100

#: How long each of them may take: as long as a call of most scenarios, because other programs may have the cores.
AGAIN_SECONDS = 100.0

FaultInjection = Callable[[ProcessFleet], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class CallOutcome:
    """What a caller was told, in the end: a result's text, or a fault's code.

    ``charged`` is None where the fault claimed nothing.
    """

    text: str
    is_fault: bool = False
    charged: bool | None = True


@dataclasses.dataclass(frozen=True)
class ScenarioReport:
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
    false_words: int
    longest_s: float | None
    takeover_s: float | None
    p99_s: float | None


@dataclasses.dataclass(frozen=True)
class ScenarioResult:
    """Everything that is known at the end: what the callers were told, the ledger's calls, the provider's count.

    ``outcomes`` has each caller's word on each request id it asked; ``reply_texts`` every reply that reached a
    caller, also those it no longer waited for; ``repeated_outcomes`` what the same question was told once all was over.
    """

    fault: str
    max_calls: int
    session: SessionOpened
    outcomes: dict[str, list[CallOutcome]]
    reply_texts: dict[str, list[str]]
    repeated_outcomes: dict[str, CallOutcome]
    info: quintain.Info
    ledger_calls: dict[str, LedgerCall]
    provider_calls: Counter[str]
    times: CallTimes = dataclasses.field(default_factory=CallTimes)

    def report(self) -> ScenarioReport:
        """As a line of the table."""
        answered = [
            request_id for request_id, call_outcomes in self.outcomes.items() if call_outcomes and all(call_outcomes)
        ]
        return ScenarioReport(
            fault=self.fault,
            calls=len(self.outcomes),
            answers=len(answered),
            charged=self.info.call_count,
            refunded=self.info.refunded,
            in_doubt=self.info.in_doubt,
            attempts=sum(call.granted_attempts for call in self.ledger_calls.values()),
            provider=self.provider_calls.total(),
            lost=len(self.outcomes) - len(answered),
            overspent=max(0, self.info.call_count - self.max_calls),
            false_words=len(self.false_words()),
            longest_s=max(self.times.seconds_from_fault().values(), default=None),
            takeover_s=max(self.takeover_seconds(), default=None),
            p99_s=self.times.p99(),
        )

    def false_words(self) -> list[tuple[str, CallOutcome, LedgerCall | None]]:
        """The faults whose word about the charge is not the ledger's; one that claims nothing is none of them."""
        return [
            (request_id, outcome, call)
            for request_id, outcomes in self.outcomes.items()
            for call in (self.ledger_calls.get(request_id),)
            for outcome in outcomes
            if outcome.is_fault and outcome.charged not in {None, call is not None and call.charged}
        ]

    def takeover_seconds(self) -> list[float]:
        """From the fault to the answer, of each call that was in flight then and that another worker took over."""
        return [
            seconds
            for request_id, seconds in self.times.seconds_from_fault().items()
            if (call := self.ledger_calls.get(request_id)) is not None and call.granted_attempts > 1
        ]

    def fault_counts(self) -> Counter[str]:
        """How often each fault was told."""
        return Counter(
            outcome.text for call_outcomes in self.outcomes.values() for outcome in call_outcomes if outcome.is_fault
        )


@dataclasses.dataclass
class FaultScenario:
    """A fleet under load, the fault, and what is left of it.

    ``questions`` are their own request ids; under ``load`` they are ignored, and calls go on until its end. The fault
    is injected after the first answer, under load a second later; where one of the ``dying`` processes is to end by
    itself, after that.
    """

    fleet: ProcessFleet
    questions: Sequence[str]
    #: Whether each call names its target; otherwise the metadata service sends it on to the session's default.
    names_target: bool = False
    max_calls: int | None = None
    duplicates: int = 1
    deadline_seconds: float = 100.0
    dying: Sequence[Process] = ()
    load: Load | None = None
    #: A call that ends only by its caller's own deadline counts as lost, but where the operator lost it.
    may_expire: bool = False
    times: CallTimes = dataclasses.field(default_factory=CallTimes)

    async def run(self, fault: str, inject_fault: FaultInjection) -> ScenarioResult:
        """Send all calls, inject the fault, wait for every answer, and ask everything that was charged again."""
        max_calls = LOAD_MAX_CALLS if self.load else self.max_calls or len(self.questions)
        session = await asyncio.to_thread(self.fleet.open_session, "bot", max_calls)
        before = asyncio.all_tasks()
        async with recording_client(self.fleet.broker_url, session.token, knows_defaults=False) as evaluator_client:
            outcomes = await self._send_all(evaluator_client, inject_fault)
            info = await wait_until_idle(evaluator_client.client)
            repeated_outcomes = await self._send_again(evaluator_client.client, outcomes)
            assert evaluator_client.rpc_client.in_flight == 0, "a future is left over"
            reply_texts = {request_id: list(texts) for request_id, texts in evaluator_client.reply_texts.items()}
        await assert_no_task_left(asyncio.all_tasks() - before)
        ledger_calls = await read_calls(self.fleet.ledger_url, session.session_id)
        return ScenarioResult(
            fault=f"{fault}, under load" if self.load else fault,
            max_calls=max_calls,
            session=session,
            outcomes=outcomes,
            reply_texts=reply_texts,
            repeated_outcomes=repeated_outcomes,
            info=info,
            ledger_calls=ledger_calls,
            provider_calls=self.provider_count(),
            times=self.times,
        )

    async def _send_all(
        self, evaluator_client: RecordingClient, inject_fault: FaultInjection
    ) -> dict[str, list[CallOutcome]]:
        loop, answered = asyncio.get_running_loop(), asyncio.Event()
        outcomes: dict[str, list[CallOutcome]] = {} if self.load else {question: [] for question in self.questions}

        async def send(question: str) -> None:
            said, sent_at = outcomes.setdefault(question, []), loop.time()
            request = self._request(question)
            outcome = await send_until_accepted(
                evaluator_client.client, request, deadline_seconds=self.deadline_seconds
            )
            self.times.answered.append((question, sent_at, loop.time()))
            answered.set()
            if self.may_expire or outcome.text != quintain.Expired.code:
                said.append(outcome)

        if self.load is None:
            sending = [asyncio.create_task(send(question)) for question in [*self.questions] * self.duplicates]
        else:
            load = self.load
            sending = [asyncio.create_task(load.send_until(lambda: self.times.fault_injected + load.seconds, send))]
        await self._wait_for_fault(answered)
        self.times.fault_began = loop.time()
        await inject_fault(self.fleet)
        self.times.fault_injected = loop.time()
        await asyncio.gather(*sending)
        return outcomes

    async def _wait_for_fault(self, answered: asyncio.Event) -> None:
        """Until calls run, and the target's limit is full under load; or until a process has died by itself."""
        if not self.dying:
            await answered.wait()
            await asyncio.sleep(1 if self.load else 0)
        async with asyncio.timeout(100):
            while self.dying and all(process.alive for process in self.dying):
                await asyncio.sleep(0.02)

    async def _send_again(self, client: Client, outcomes: dict[str, list[CallOutcome]]) -> dict[str, CallOutcome]:
        """What everything that was charged is told now: the ledger's word, and no other call."""
        charged = [
            request_id for request_id, call_outcomes in outcomes.items() if call_outcomes and call_outcomes[0].charged
        ]
        if self.may_expire:
            charged = [request_id for request_id in charged if outcomes[request_id][0].text != quintain.Expired.code]
        charged = random.Random(0).sample(charged, min(len(charged), ASKED_AGAIN))
        room = asyncio.Semaphore(ASKED_AT_A_TIME)

        async def send(request_id: str) -> CallOutcome:
            async with room:
                return await send_until_accepted(client, self._request(request_id), deadline_seconds=AGAIN_SECONDS)

        return dict(zip(charged, await asyncio.gather(*map(send, charged)), strict=True))

    def _request(self, question: str) -> InvokeRequest:
        return InvokeRequest(question=question, target="bot" if self.names_target else None)

    def provider_count(self) -> Counter[str]:
        """How often the provider was asked each question, by its own count."""
        path = self.fleet.folder / "provider-count"
        return Counter(path.read_text().splitlines() if path.exists() else ())


async def no_fault(_: ProcessFleet) -> None:
    """Inject nothing."""


async def send_until_accepted(client: Client, request: InvokeRequest, *, deadline_seconds: float) -> CallOutcome:
    """One call under its question as request id, and what came of it; what is full is asked again."""
    while True:
        try:
            result = await client.send(request, request_id=request.question, deadline_seconds=deadline_seconds)
        except quintain.Overloaded:
            await asyncio.sleep(0.2)
        except quintain.Fault as fault:
            return CallOutcome(fault.code, is_fault=True, charged=fault.charged)
        else:
            return CallOutcome(result.raw_text)


async def wait_until_idle(target: Client) -> quintain.Info:
    """The session's counters once nothing runs any more."""
    async with asyncio.timeout(120):
        while (info := await target.get_info()).running:
            await asyncio.sleep(0.2)
    return info


async def assert_no_task_left(tasks: set[asyncio.Task[Any]]) -> None:
    """The client's tasks end with it, within a second."""
    left = {task for task in tasks if not belongs_to_tests(task)}
    if left:
        _, left = await asyncio.wait(left, timeout=1)
    assert left == set(), "tasks are left over"


def belongs_to_tests(task: asyncio.Task[Any]) -> bool:
    """Whether a task is a test's own (a proxy's, a model server's), and none of the client's."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and "/tests/" in code.co_filename


def format_table(reports: list[ScenarioReport]) -> list[str]:
    """The endings as lines of a table."""
    names = [field.name for field in dataclasses.fields(ScenarioReport)]
    rows = [names, *([_cell(getattr(report, name)) for name in names] for report in reports)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
