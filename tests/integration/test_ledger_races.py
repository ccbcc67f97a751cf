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
from typing import NamedTuple

import asyncpg
import pytest

from quintain.contracts.ledger import Admission, AttemptOutcome, Heartbeat
from quintain.contracts.session import SessionOpened
from quintain.errors import Cancelled, Fault
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.ledger import calls, leases
from quintain_metadata.ledger.calls import CallOperations, CancelResult
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
    one_admit,
    one_settle,
    open_ledgers,
    open_session,
    register,
    release_operation,
    reserve_operation,
    settle_operation,
)
from support.servers.postgres_sql import run_sql

#: Behind every lease and every deadline that is written here, and not so late that a settle counts as lost.
LATER_MS = 630_000

STARTS = "INSERT INTO call"
CHARGES = "UPDATE session SET used"

Act = Callable[[SessionOpened], Operation[object]]


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


def admits(session: SessionOpened) -> Operation[object]:
    return admit_operation(session, "call", "attempt")


def reserves(session: SessionOpened) -> Operation[object]:
    return reserve_operation(session, ["call"])


def cancels(*names: str) -> Act:
    return lambda session: cancel_operation(session, [*names, "call"])


def settles(session: SessionOpened) -> Operation[object]:
    return settle_operation(session, "call", "attempt", AttemptOutcome.RESULT)


def sweeps(_: SessionOpened) -> Operation[object]:
    return after_all_deadlines(calls.sweep)


def swept_at_its_gate(_: SessionOpened) -> Operation[object]:
    return gated_after_its_queries(after_all_deadlines(calls.sweep))


def takes_over(session: SessionOpened) -> Operation[object]:
    def after_the_lease(moment: Moment) -> SqlProgram[object]:
        # The first worker's lease has lapsed and the deadline has not passed: the second one's begins now.
        now = moment.now + DEFAULT_TIMINGS.lease_ms + 1
        yield from leases.renew_lease(now + LATER_MS, Heartbeat(worker_id="w2", incarnation="w2"))
        return (yield from admit_operation(session, "call", "taken over", "w2")(Moment(now, now)))

    return after_the_lease


def held_before(beginning: str, act: Act) -> Act:
    return lambda session: gated_before(beginning, act(session))


GRANTED, ANYTHING = "granted", "anything"


class Race(NamedTuple):
    """What was done before, the operation at the gate and the other one, what both return, and what then counts."""

    before: Act | None
    held: Act
    other: Act
    returned: tuple[object, object]
    counts: dict[str, int]


RUNS_ONCE = {"call_count": 1, "running": 1, "reserved": 0}
COMMITTED = {"call_count": 1, "committed": 1, "in_doubt": 0}
UNTOUCHED = {"call_count": 0}

RACES = {
    # A reservation that ends while it is admitted never runs uncharged.
    "released while admitted": Race(
        reserves,
        held_before(STARTS, admits),
        lambda session: release_operation(session, ["call"]),
        (GRANTED, ANYTHING),
        RUNS_ONCE,
    ),
    "closed while admitted": Race(
        reserves, held_before(STARTS, admits), close_operation, (GRANTED, ANYTHING), RUNS_ONCE
    ),
    "swept while admitted": Race(reserves, held_before(STARTS, admits), sweeps, (GRANTED, ANYTHING), RUNS_ONCE),
    # Reserved and admitted at once, it is charged once.
    **{
        f"{names}, at {at}": Race(None, held_before(at, held), other, returned, {"call_count": 1})
        for at in (STARTS, CHARGES)
        for names, held, other, returned in (
            ("reserved while admitted", admits, reserves, (GRANTED, ANYTHING)),
            ("admitted while reserved", reserves, admits, (ANYTHING, GRANTED)),
        )
    },
    # What comes while a call is swept counts.
    "answered while swept": Race(admits, swept_at_its_gate, settles, (ANYTHING, ANYTHING), COMMITTED),
    "taken over while swept": Race(
        admits, swept_at_its_gate, takes_over, (ANYTHING, GRANTED), {"running": 1, "in_doubt": 0}
    ),
    # Who comes first, the cancel or the admit, is obeyed.
    **{
        f"cancelled while admitted, {state}": Race(
            before,
            held_before(STARTS, admits),
            cancels("another"),
            (GRANTED, CancelResult(2, ["call"])),
            RUNS_ONCE,
        )
        for state, before in (("new", None), ("reserved", reserves))
    },
    **{
        f"admitted while cancelled, {state}": Race(
            before, held_before(STARTS, cancels("another")), admits, (CancelResult(2), Cancelled), UNTOUCHED
        )
        for state, before in (("new", None), ("reserved", reserves))
    },
    "reserved while cancelled": Race(None, held_before(STARTS, cancels()), reserves, (CancelResult(1), 0), UNTOUCHED),
    "answered while cancelled": Race(
        admits, held_before(STARTS, cancels()), settles, (CancelResult(1, ["call"]), ANYTHING), COMMITTED
    ),
}


@pytest.mark.parametrize("race", RACES.values(), ids=RACES)
async def test_of_two_operations_on_one_call_at_once_each_keeps_its_word(
    services: list[Ledger], watcher: asyncpg.Connection[asyncpg.Record], race: Race
) -> None:
    session = await open_session(services[0], 5)
    await register(services[0], "w2")
    if race.before is not None:
        await services[0].transact(race.before(session))
    if race.before is reserves:
        await services[0].transact(extend_lease)
    returned = await run_interleaved(services, watcher, race.held(session), race.other(session))
    for expected, found in zip(race.returned, returned, strict=True):
        if expected == GRANTED:
            assert is_granted(found), found
        elif isinstance(expected, type):
            assert isinstance(found, expected), found
        elif expected != ANYTHING:
            assert found == expected
    known = await info(services[2], session)
    assert {name: getattr(known, name) for name in race.counts} == race.counts
    if race.counts is COMMITTED:
        again = await admit(services[2], session, "call", "another")
        assert isinstance(again, Admission)
        assert again.fault is None
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


async def test_batches_of_three_services_take_their_locks_in_one_order(
    services: list[Ledger], fresh_postgres_url: str
) -> None:
    await register(services[0], "w2")
    parent = await open_session(services[0], 10_000)
    family = [parent, *[await open_session(services[0], 10_000, parent) for _ in range(2)]]
    chance = random.Random(20)

    async def service(ledger: Ledger, name: str) -> None:
        for batch in range(12):
            made = [(chance.choice(family), f"{name} {batch} {number}") for number in range(16)]
            admits = [one_admit(session, call, call, chance.choice([WORKER, "w2"])) for session, call in made]
            assert all(map(is_granted, await CallOperations(ledger).run(admits)))
            ends = chance.choices([AttemptOutcome.RESULT, AttemptOutcome.REFUND], k=len(made))
            settles = [one_settle(session, call, call, end) for (session, call), end in zip(made, ends, strict=True)]
            assert not [each for each in await CallOperations(ledger).run(settles) if isinstance(each, Exception)]

    await asyncio.gather(*(service(ledger, f"{number}") for number, ledger in enumerate(services * 2)))
    assert (await info(services[0], parent)).running == 0
    await assert_ledger_consistent(services[0])
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await asyncio.to_thread(run_sql, fresh_postgres_url, deadlocks) == 0
