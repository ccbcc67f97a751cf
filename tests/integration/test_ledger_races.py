"""Two services at one call: whoever comes between another's look and its word, the books agree and nobody's word is
undone.

An operation is held just before one of its statements, by a lock that only the test lets go, while another operation
runs as far as it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

from quintain.contracts.ledger import Admission, Heartbeat, Outcome
from quintain.contracts.metadata import SessionOpened
from quintain.errors import Cancelled, Fault
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata import upkeep
from quintain_metadata.cancels import TakenBack
from quintain_metadata.ledger import Ledger, Operation, Returned
from quintain_metadata.records import Moment
from quintain_metadata.steps import Lock, Statement, Steps
from support.ledger_asks import (
    WORKER,
    admit,
    admitting,
    assert_the_books_agree,
    cancelling,
    closing,
    granted,
    info,
    open_session,
    register,
    releasing,
    reserve,
    reserving,
    services_on,
    settling,
)

#: Behind every lease and every deadline that is written here.
LATER_MS = 3_600_000

STARTS = "INSERT INTO call"
CHARGES = "UPDATE session SET used"


@pytest.fixture
async def services(fresh_postgres_url: str) -> AsyncIterator[list[Ledger]]:
    async with services_on(fresh_postgres_url, 3) as ledgers:
        yield ledgers


@pytest.fixture
async def watcher(fresh_postgres_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(fresh_postgres_url)
    yield connection
    await connection.close()


def held_before(beginning: str, operation: Operation[Returned]) -> Operation[Returned]:
    """The same operation, which must pass the gate before its first statement that begins so."""
    return held(operation, lambda step, _: isinstance(step, Statement) and step.sql.startswith(beginning))


def held_after_its_first_look(operation: Operation[Returned]) -> Operation[Returned]:
    """The same operation, which must pass the gate after its first step."""
    return held(operation, lambda _, number: number == 1)


def held(operation: Operation[Returned], here: Callable[[Statement | Lock, int], bool]) -> Operation[Returned]:
    def steps(moment: Moment) -> Steps[Returned]:
        inner = operation(moment)
        number, passed = 0, False
        try:
            step = next(inner)
            while True:
                if not passed and here(step, number):
                    passed = True
                    yield Lock(("gate",))
                step = inner.send((yield step))
                number += 1
        except StopIteration as end:
            returned: Returned = end.value
            return returned

    return steps


def later(operation: Operation[Returned]) -> Operation[Returned]:
    """The same operation, when every lease and every deadline has passed."""
    return lambda moment: operation(Moment(moment.now + LATER_MS))


@contextlib.asynccontextmanager
async def gate(watcher: asyncpg.Connection[asyncpg.Record]) -> AsyncIterator[None]:
    """Closed until left."""
    key = "hashtextextended('gate', 0)"
    await watcher.execute(f"SELECT pg_advisory_lock({key})")
    try:
        yield
    finally:
        await watcher.execute(f"SELECT pg_advisory_unlock({key})")


async def interleaved(
    services: list[Ledger],
    watcher: asyncpg.Connection[asyncpg.Record],
    held: Operation[object],
    other: Operation[object],
) -> tuple[object, object]:
    """Run the one up to its gate, the other as far as it gets, and then both to their ends."""

    async def until_waiting(number: int, *unless: asyncio.Task[object]) -> None:
        while await watcher.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < number:
            if any(task.done() for task in unless):
                return
            await asyncio.sleep(0.01)

    async with gate(watcher):
        first = asyncio.create_task(services[0].do(held))
        await until_waiting(1)
        second = asyncio.create_task(services[1].do(other))
        await until_waiting(2, second)
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    return outcomes[0], outcomes[1]


def lives_on(moment: Moment) -> Steps[object]:
    """The worker's lease runs whatever the time."""
    return (yield from upkeep.renew(moment.now + LATER_MS, Heartbeat(worker_id=WORKER, incarnation=WORKER)))


def released(session: SessionOpened) -> Operation[int]:
    return releasing(session, ["call"])


def swept(_: SessionOpened) -> Operation[int]:
    return later(upkeep.sweep)


@pytest.mark.parametrize("ending", [released, closing, swept], ids=["released", "closed", "swept"])
async def test_a_reservation_that_ends_while_it_is_admitted_never_runs_uncharged(
    services: list[Ledger],
    watcher: asyncpg.Connection[asyncpg.Record],
    ending: Callable[[SessionOpened], Operation[int]],
) -> None:
    session = await open_session(services[0], 5)
    await reserve(services[0], session, ["call"])
    await services[0].do(lives_on)
    verdict, _ = await interleaved(
        services, watcher, held_before(STARTS, admitting(session, "call", "attempt")), ending(session)
    )
    assert granted(verdict), verdict
    known = await info(services[2], session)
    assert (known.call_count, known.running, known.reserved) == (1, 1, 0)
    await assert_the_books_agree(services[2])


@pytest.mark.parametrize("at", [STARTS, CHARGES])
async def test_a_call_that_is_reserved_while_it_is_admitted_is_charged_once(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record], at: str
) -> None:
    session = await open_session(services[0], 5)
    verdict, _ = await interleaved(
        services, watcher, held_before(at, admitting(session, "call", "attempt")), reserving(session, ["call"])
    )
    assert granted(verdict), verdict
    assert (await info(services[2], session)).call_count == 1
    await assert_the_books_agree(services[2])


@pytest.mark.parametrize("at", [STARTS, CHARGES])
async def test_a_call_that_is_admitted_while_it_is_reserved_is_charged_once(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record], at: str
) -> None:
    session = await open_session(services[0], 5)
    _, verdict = await interleaved(
        services, watcher, held_before(at, reserving(session, ["call"])), admitting(session, "call", "attempt")
    )
    assert granted(verdict), verdict
    assert (await info(services[2], session)).call_count == 1
    await assert_the_books_agree(services[2])


async def test_a_result_that_comes_while_its_call_is_swept_stays_the_calls_answer(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record]
) -> None:
    session = await open_session(services[0], 5)
    await admit(services[0], session, "call", "attempt")
    await interleaved(
        services,
        watcher,
        held_after_its_first_look(later(upkeep.sweep)),
        settling(session, "call", "attempt", Outcome.RESULT),
    )
    again = await admit(services[2], session, "call", "another")
    assert isinstance(again, Admission)
    assert again.fault is None
    assert again.replay is not None
    known = await info(services[2], session)
    assert (known.committed, known.in_doubt) == (1, 0)
    await assert_the_books_agree(services[2])


async def test_a_call_that_is_taken_over_while_it_is_swept_is_not_lost(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record]
) -> None:
    session = await open_session(services[0], 5)
    await admit(services[0], session, "call", "attempt")
    await register(services[0], "w2")

    def after_the_lease(moment: Moment) -> Steps[object]:
        # The first worker's lease has lapsed and the deadline has not passed: the second one's begins now.
        now = moment.now + DEFAULT_TIMINGS.lease_ms + 1
        yield from upkeep.renew(now + LATER_MS, Heartbeat(worker_id="w2", incarnation="w2"))
        return (yield from admitting(session, "call", "taken over", "w2")(Moment(now)))

    _, verdict = await interleaved(services, watcher, held_after_its_first_look(later(upkeep.sweep)), after_the_lease)
    assert granted(verdict), verdict
    known = await info(services[2], session)
    assert (known.running, known.in_doubt) == (1, 0)
    await assert_the_books_agree(services[2])


@pytest.mark.parametrize("reserved", [False, True])
async def test_a_call_that_is_cancelled_while_it_is_admitted_runs_and_is_to_be_aborted(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record], reserved: bool
) -> None:
    session = await open_session(services[0], 5)
    if reserved:
        await reserve(services[0], session, ["call"])
    verdict, taken = await interleaved(
        services,
        watcher,
        held_before(STARTS, admitting(session, "call", "attempt")),
        cancelling(session, ["another", "call"]),
    )
    assert granted(verdict), verdict
    assert taken == TakenBack(2, ["call"])
    known = await info(services[2], session)
    assert (known.call_count, known.running, known.reserved) == (1, 1, 0)
    await assert_the_books_agree(services[2])


@pytest.mark.parametrize("reserved", [False, True])
async def test_a_call_that_is_admitted_while_it_is_cancelled_never_runs(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record], reserved: bool
) -> None:
    session = await open_session(services[0], 5)
    if reserved:
        await reserve(services[0], session, ["call"])
    beginning = "UPDATE call SET state" if reserved else STARTS
    taken, verdict = await interleaved(
        services,
        watcher,
        held_before(beginning, cancelling(session, ["another", "call"])),
        admitting(session, "call", "attempt"),
    )
    assert taken == TakenBack(2)
    assert isinstance(verdict, Cancelled)
    assert (await info(services[2], session)).call_count == 0
    await assert_the_books_agree(services[2])


async def test_a_call_that_is_reserved_while_it_is_cancelled_is_given_back(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record]
) -> None:
    session = await open_session(services[0], 5)
    taken, fresh = await interleaved(
        services, watcher, held_before(STARTS, cancelling(session, ["call"])), reserving(session, ["call"])
    )
    assert (taken, fresh) == (TakenBack(1), 1)
    assert (await info(services[2], session)).call_count == 0
    await assert_the_books_agree(services[2])


async def test_a_result_that_comes_while_its_call_is_cancelled_stays_the_calls_answer(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record]
) -> None:
    session = await open_session(services[0], 5)
    await admit(services[0], session, "call", "attempt")
    taken, _ = await interleaved(
        services,
        watcher,
        held_before("UPDATE call SET state", cancelling(session, ["call"])),
        settling(session, "call", "attempt", Outcome.RESULT),
    )
    assert taken == TakenBack(1, ["call"])
    again = await admit(services[2], session, "call", "another")
    assert isinstance(again, Admission)
    assert again.replay is not None
    await assert_the_books_agree(services[2])


class Scramble:
    """Clients of three services that do what they like to the same few calls. Each attempt ends in one way only,
    told as often as anybody likes."""

    def __init__(self, services: list[Ledger], sessions: list[SessionOpened], seed: int) -> None:
        self.services, self.sessions, self.chance = services, sessions, random.Random(seed)
        self.ahead_ms = 0
        self.attempts: list[tuple[SessionOpened, str, str]] = []
        self.refusals: Counter[str] = Counter()

    async def client(self, steps: int) -> None:
        for _ in range(steps):
            operation = self.operation()
            ahead_ms = self.ahead_ms
            try:
                await self.chance.choice(self.services).do(
                    lambda moment, operation=operation, ahead_ms=ahead_ms: operation(Moment(moment.now + ahead_ms))
                )
            except Fault as fault:
                self.refusals[fault.code] += 1

    def operation(self) -> Operation[object]:
        names = [f"call {number}" for number in range(6)]
        session = self.chance.choice(self.sessions)
        kind = self.chance.choices(
            ["admit", "settle", "reserve", "release", "cancel", "renew", "sweep", "later", "close"],
            [30, 30, 8, 5, 1, 15, 8, 3, 1],
        )[0]
        match kind:
            case "settle" if self.attempts:
                attempt = self.chance.choice(self.attempts[-10:])
                return settling(*attempt, self.end_of(attempt[2]))
            case "reserve":
                return reserving(session, self.chance.sample(names, 3))
            case "release":
                return releasing(session, self.chance.sample(names, 3))
            case "cancel":
                # Seldom, and only these two: what was cancelled is out of the game.
                return cancelling(session, names[:2])
            case "renew":
                beat = Heartbeat(worker_id="w2", incarnation=self.chance.choice([WORKER, "w2"]))
                return lambda moment: upkeep.renew(moment.now, beat)
            case "sweep":
                return upkeep.sweep
            case "close":
                return closing(session)
            case "later":
                self.ahead_ms += self.chance.choice([16_000, 700_000])
        attempt = session, self.chance.choice(names), f"attempt {len(self.attempts)}"
        self.attempts.append(attempt)
        return admitting(*attempt, self.chance.choice([WORKER, "w2"]))

    def end_of(self, attempt_id: str) -> Outcome:
        return random.Random(attempt_id).choice(list(Outcome))


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_three_services_do_to_the_same_few_calls_at_once_the_books_agree(
    services: list[Ledger], seed: int
) -> None:
    parent = await open_session(services[0], 9)
    sessions = [parent, *[await open_session(services[0], 5, parent) for _ in range(2)]]
    scramble = Scramble(services, sessions, seed)
    await asyncio.gather(*(scramble.client(60) for _ in range(16)))
    await assert_the_books_agree(services[0])
    # Everything but the servers' own trouble is among what may be said.
    assert set(scramble.refusals) <= {"budget_exhausted", "cancelled", "expired", "reply_expired"}
    assert scramble.refusals["budget_exhausted"] > 0
