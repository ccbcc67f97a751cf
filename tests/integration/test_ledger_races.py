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

from quintain.contracts.ledger import Admission, AttemptOutcome, Heartbeat
from quintain.contracts.session import SessionOpened
from quintain.errors import Cancelled, Fault
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.ledger import calls, leases
from quintain_metadata.ledger.calls import CancelResult
from quintain_metadata.store.base import (
    AdvisoryLock,
    ForEach,
    Ledger,
    Moment,
    Operation,
    Returned,
    SqlProgram,
    Statement,
    Step,
)
from support.ledger_operations import (
    WORKER,
    admit,
    admit_operation,
    assert_ledger_consistent,
    cancel_operation,
    close_operation,
    info,
    is_granted,
    open_ledgers,
    open_session,
    register,
    release_operation,
    reserve,
    reserve_operation,
    settle_operation,
)

#: Behind every lease and every deadline that is written here, and not so late that a settle counts as lost.
LATER_MS = 630_000

STARTS = "INSERT INTO call"
CHARGES = "UPDATE session SET used"


@pytest.fixture
async def services(fresh_postgres_url: str) -> AsyncIterator[list[Ledger]]:
    async with open_ledgers(fresh_postgres_url, 3) as ledgers:
        yield ledgers


@pytest.fixture
async def watcher(fresh_postgres_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(fresh_postgres_url)
    yield connection
    await connection.close()


def gated_before(beginning: str, operation: Operation[Returned]) -> Operation[Returned]:
    """The same operation, which must pass the gate before its first statement that begins so."""
    return gated(operation, lambda step, _: isinstance(step, Statement | ForEach) and step.sql.startswith(beginning))


def gated_after_its_queries(operation: Operation[Returned]) -> Operation[Returned]:
    """The same operation, which must pass the gate after its first two steps."""
    return gated(operation, lambda _, number: number == 2)


def gated(operation: Operation[Returned], is_gate_step: Callable[[Step, int], bool]) -> Operation[Returned]:
    def steps(moment: Moment) -> SqlProgram[Returned]:
        inner = operation(moment)
        number, passed = 0, False
        try:
            step = next(inner)
            while True:
                if not passed and is_gate_step(step, number):
                    passed = True
                    yield AdvisoryLock({"gate": [()]})
                step = inner.send((yield step))
                number += 1
        except StopIteration as end:
            returned: Returned = end.value
            return returned

    return steps


def after_all_deadlines(operation: Operation[Returned]) -> Operation[Returned]:
    """The same operation, when every lease and every deadline has passed."""
    return lambda moment: operation(Moment(moment.now + LATER_MS, moment.now + LATER_MS))


@contextlib.asynccontextmanager
async def closed_gate(watcher: asyncpg.Connection[asyncpg.Record]) -> AsyncIterator[None]:
    """Closed until left."""
    key = "hashtextextended('gate', 0)"
    await watcher.execute(f"SELECT pg_advisory_lock({key})")
    try:
        yield
    finally:
        await watcher.execute(f"SELECT pg_advisory_unlock({key})")


async def run_interleaved(
    services: list[Ledger],
    watcher: asyncpg.Connection[asyncpg.Record],
    gated_operation: Operation[object],
    other: Operation[object],
) -> tuple[object, object]:
    """Run the one up to its gate, the other as far as it gets, and then both to their ends."""

    async def wait_until_blocked(number: int, *unless: asyncio.Task[object]) -> None:
        while await watcher.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < number:
            if any(task.done() for task in unless):
                return
            await asyncio.sleep(0.01)

    async with closed_gate(watcher):
        first = asyncio.create_task(services[0].transact(gated_operation))
        await wait_until_blocked(1)
        second = asyncio.create_task(services[1].transact(other))
        await wait_until_blocked(2, second)
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    return outcomes[0], outcomes[1]


def extend_lease(moment: Moment) -> SqlProgram[object]:
    """The worker's lease runs whatever the time."""
    return (yield from leases.renew_lease(moment.now + LATER_MS, Heartbeat(worker_id=WORKER, incarnation=WORKER)))


def release_call(session: SessionOpened) -> Operation[int]:
    return release_operation(session, ["call"])


def sweep_later(_: SessionOpened) -> Operation[int]:
    return after_all_deadlines(calls.sweep)


@pytest.mark.parametrize("ending", [release_call, close_operation, sweep_later], ids=["released", "closed", "swept"])
async def test_a_reservation_that_ends_while_it_is_admitted_never_runs_uncharged(
    services: list[Ledger],
    watcher: asyncpg.Connection[asyncpg.Record],
    ending: Callable[[SessionOpened], Operation[int]],
) -> None:
    session = await open_session(services[0], 5)
    await reserve(services[0], session, ["call"])
    await services[0].transact(extend_lease)
    verdict, _ = await run_interleaved(
        services, watcher, gated_before(STARTS, admit_operation(session, "call", "attempt")), ending(session)
    )
    assert is_granted(verdict), verdict
    known = await info(services[2], session)
    assert (known.call_count, known.running, known.reserved) == (1, 1, 0)
    await assert_ledger_consistent(services[2])


@pytest.mark.parametrize("at", [STARTS, CHARGES])
async def test_a_call_that_is_reserved_while_it_is_admitted_is_charged_once(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record], at: str
) -> None:
    session = await open_session(services[0], 5)
    verdict, _ = await run_interleaved(
        services,
        watcher,
        gated_before(at, admit_operation(session, "call", "attempt")),
        reserve_operation(session, ["call"]),
    )
    assert is_granted(verdict), verdict
    assert (await info(services[2], session)).call_count == 1
    await assert_ledger_consistent(services[2])


@pytest.mark.parametrize("at", [STARTS, CHARGES])
async def test_a_call_that_is_admitted_while_it_is_reserved_is_charged_once(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record], at: str
) -> None:
    session = await open_session(services[0], 5)
    _, verdict = await run_interleaved(
        services,
        watcher,
        gated_before(at, reserve_operation(session, ["call"])),
        admit_operation(session, "call", "attempt"),
    )
    assert is_granted(verdict), verdict
    assert (await info(services[2], session)).call_count == 1
    await assert_ledger_consistent(services[2])


async def test_a_result_that_comes_while_its_call_is_swept_stays_the_calls_answer(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record]
) -> None:
    session = await open_session(services[0], 5)
    await admit(services[0], session, "call", "attempt")
    await run_interleaved(
        services,
        watcher,
        gated_after_its_queries(after_all_deadlines(calls.sweep)),
        settle_operation(session, "call", "attempt", AttemptOutcome.RESULT),
    )
    again = await admit(services[2], session, "call", "another")
    assert isinstance(again, Admission)
    assert again.fault is None
    assert again.replay is not None
    known = await info(services[2], session)
    assert (known.committed, known.in_doubt) == (1, 0)
    await assert_ledger_consistent(services[2])


async def test_a_call_that_is_taken_over_while_it_is_swept_is_not_lost(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record]
) -> None:
    session = await open_session(services[0], 5)
    await admit(services[0], session, "call", "attempt")
    await register(services[0], "w2")

    def after_the_lease(moment: Moment) -> SqlProgram[object]:
        # The first worker's lease has lapsed and the deadline has not passed: the second one's begins now.
        now = moment.now + DEFAULT_TIMINGS.lease_ms + 1
        yield from leases.renew_lease(now + LATER_MS, Heartbeat(worker_id="w2", incarnation="w2"))
        return (yield from admit_operation(session, "call", "taken over", "w2")(Moment(now, now)))

    _, verdict = await run_interleaved(
        services, watcher, gated_after_its_queries(after_all_deadlines(calls.sweep)), after_the_lease
    )
    assert is_granted(verdict), verdict
    known = await info(services[2], session)
    assert (known.running, known.in_doubt) == (1, 0)
    await assert_ledger_consistent(services[2])


@pytest.mark.parametrize("reserved", [False, True])
async def test_a_call_that_is_cancelled_while_it_is_admitted_runs_and_is_to_be_aborted(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record], reserved: bool
) -> None:
    session = await open_session(services[0], 5)
    if reserved:
        await reserve(services[0], session, ["call"])
    verdict, taken = await run_interleaved(
        services,
        watcher,
        gated_before(STARTS, admit_operation(session, "call", "attempt")),
        cancel_operation(session, ["another", "call"]),
    )
    assert is_granted(verdict), verdict
    assert taken == CancelResult(2, ["call"])
    known = await info(services[2], session)
    assert (known.call_count, known.running, known.reserved) == (1, 1, 0)
    await assert_ledger_consistent(services[2])


@pytest.mark.parametrize("reserved", [False, True])
async def test_a_call_that_is_admitted_while_it_is_cancelled_never_runs(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record], reserved: bool
) -> None:
    session = await open_session(services[0], 5)
    if reserved:
        await reserve(services[0], session, ["call"])
    taken, verdict = await run_interleaved(
        services,
        watcher,
        gated_before(STARTS, cancel_operation(session, ["another", "call"])),
        admit_operation(session, "call", "attempt"),
    )
    assert taken == CancelResult(2)
    assert isinstance(verdict, Cancelled)
    assert (await info(services[2], session)).call_count == 0
    await assert_ledger_consistent(services[2])


async def test_a_call_that_is_reserved_while_it_is_cancelled_stays_cancelled(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record]
) -> None:
    session = await open_session(services[0], 5)
    taken, fresh = await run_interleaved(
        services,
        watcher,
        gated_before(STARTS, cancel_operation(session, ["call"])),
        reserve_operation(session, ["call"]),
    )
    assert (taken, fresh) == (CancelResult(1), 0)
    assert (await info(services[2], session)).call_count == 0
    await assert_ledger_consistent(services[2])


async def test_a_result_that_comes_while_its_call_is_cancelled_stays_the_calls_answer(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record]
) -> None:
    session = await open_session(services[0], 5)
    await admit(services[0], session, "call", "attempt")
    taken, _ = await run_interleaved(
        services,
        watcher,
        gated_before(STARTS, cancel_operation(session, ["call"])),
        settle_operation(session, "call", "attempt", AttemptOutcome.RESULT),
    )
    assert taken == CancelResult(1, ["call"])
    again = await admit(services[2], session, "call", "another")
    assert isinstance(again, Admission)
    assert again.replay is not None
    await assert_ledger_consistent(services[2])


class RandomClients:
    """Clients of three services that do what they like to the same few calls. Each attempt ends in one way only,
    told as often as anybody likes."""

    def __init__(self, services: list[Ledger], sessions: list[SessionOpened], seed: int) -> None:
        self.services, self.sessions, self.random = services, sessions, random.Random(seed)
        self.ahead_ms = 0
        self.attempts: list[tuple[SessionOpened, str, str]] = []
        self.refusals: Counter[str] = Counter()

    async def client(self, steps: int) -> None:
        for _ in range(steps):
            operation = self.operation()
            ahead_ms = self.ahead_ms
            try:
                await self.random.choice(self.services).transact(
                    lambda moment, operation=operation, ahead_ms=ahead_ms: operation(
                        Moment(moment.now + ahead_ms, moment.now + ahead_ms)
                    )
                )
            except Fault as fault:
                self.refusals[fault.code] += 1

    def operation(self) -> Operation[object]:
        names = [f"call {number}" for number in range(6)]
        session = self.random.choice(self.sessions)
        kind = self.random.choices(
            ["admit", "settle", "reserve", "release", "cancel", "renew", "sweep", "later", "close"],
            [30, 30, 8, 5, 1, 15, 8, 3, 1],
        )[0]
        match kind:
            case "settle" if self.attempts:
                attempt = self.random.choice(self.attempts[-10:])
                return settle_operation(*attempt, self.outcome_of(attempt[2]))
            case "reserve":
                return reserve_operation(session, self.random.sample(names, 3))
            case "release":
                return release_operation(session, self.random.sample(names, 3))
            case "cancel":
                # Seldom, and only these two: what was cancelled is out of the game.
                return cancel_operation(session, names[:2])
            case "renew":
                beat = Heartbeat(worker_id="w2", incarnation=self.random.choice([WORKER, "w2"]))
                return lambda moment: leases.renew_lease(moment.now, beat)
            case "sweep":
                return calls.sweep
            case "close":
                return close_operation(session)
            case "later":
                self.ahead_ms += self.random.choice([16_000, 700_000])
        attempt = session, self.random.choice(names), f"attempt {len(self.attempts)}"
        self.attempts.append(attempt)
        return admit_operation(*attempt, self.random.choice([WORKER, "w2"]))

    def outcome_of(self, attempt_id: str) -> AttemptOutcome:
        return random.Random(attempt_id).choice(list(AttemptOutcome))


@pytest.mark.parametrize("seed", range(3))
async def test_three_services_working_on_the_same_calls_at_once_keep_the_ledger_consistent(
    services: list[Ledger], seed: int
) -> None:
    parent = await open_session(services[0], 9)
    sessions = [parent, *[await open_session(services[0], 5, parent) for _ in range(2)]]
    scramble = RandomClients(services, sessions, seed)
    await asyncio.gather(*(scramble.client(60) for _ in range(16)))
    await assert_ledger_consistent(services[0])
    # Everything but the servers' own trouble is among what may be said.
    assert set(scramble.refusals) <= {"budget_exhausted", "cancelled", "expired", "reply_expired"}
    assert scramble.refusals["budget_exhausted"] > 0
