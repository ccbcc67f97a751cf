"""Batches of several services on one PostgreSQL: they take their locks in one order, so that none is in a deadlock."""

from __future__ import annotations

import asyncio
import random

from quintain.contracts.ledger import AttemptOutcome
from quintain_metadata.ledger.calls import CallOperations
from quintain_metadata.store.base import Ledger
from support.ledger_operations import (
    WORKER,
    assert_ledger_consistent,
    info,
    is_granted,
    one_admit,
    one_settle,
    open_ledgers,
    open_session,
    register,
)
from support.servers.postgres_sql import run_sql

SERVICES, BATCHES, CALLS = 3, 12, 16


async def test_batches_of_three_services_meet_without_a_deadlock(fresh_postgres_url: str) -> None:
    async with open_ledgers(fresh_postgres_url, SERVICES) as ledgers:
        await register(ledgers[0], "w2")
        parent = await open_session(ledgers[0], 10_000)
        family = [parent, *[await open_session(ledgers[0], 10_000, parent) for _ in range(2)]]
        chance = random.Random(20)

        async def service(ledger: Ledger, name: str) -> None:
            for batch in range(BATCHES):
                calls = [(chance.choice(family), f"{name} {batch} {number}") for number in range(CALLS)]
                outcomes = await CallOperations(ledger).run(
                    [one_admit(session, call, call, chance.choice([WORKER, "w2"])) for session, call in calls]
                )
                assert all(map(is_granted, outcomes)), outcomes
                ends = chance.choices([AttemptOutcome.RESULT, AttemptOutcome.REFUND], k=CALLS)
                settles = [
                    one_settle(session, call, call, end) for (session, call), end in zip(calls, ends, strict=True)
                ]
                assert not [each for each in await CallOperations(ledger).run(settles) if isinstance(each, Exception)]

        await asyncio.gather(*(service(ledger, f"{number}") for number, ledger in enumerate(ledgers * 2)))
        assert (await info(ledgers[0], parent)).running == 0
        await assert_ledger_consistent(ledgers[0])
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await asyncio.to_thread(run_sql, fresh_postgres_url, deadlocks) == 0
