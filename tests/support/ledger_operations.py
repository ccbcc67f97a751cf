"""Several services on one database, and what they ask of it as operations, which a test may hold or shift."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from quintain.contracts.ledger import Admission
from quintain.contracts.session import Info, SessionOpened
from quintain_metadata.ledger.decisions import Deferred
from quintain_metadata.store.base import Ledger
from quintain_metadata.store.opening import open_ledger
from support.ledger_driver import Driver, admit_request

WORKER = "w1"


@contextlib.asynccontextmanager
async def open_ledgers(url: str, count: int) -> AsyncIterator[list[Ledger]]:
    """So many ledgers on one database, as so many metadata services have them."""
    async with contextlib.AsyncExitStack() as stack:
        ledgers = [await open_ledger(url) for _ in range(count)]
        for ledger in ledgers:
            stack.push_async_callback(ledger.close)
        await register(ledgers[0])
        yield ledgers


async def register(ledger: Ledger, worker: str = WORKER) -> None:
    await Driver(ledger).register(worker, limit=10_000)


async def open_session(ledger: Ledger, max_calls: int, parent: SessionOpened | None = None) -> SessionOpened:
    return await Driver(ledger).open_session(max_calls=max_calls, parent=parent)


async def admit(ledger: Ledger, session: SessionOpened, request_id: str, attempt_id: str) -> Admission | Deferred:
    return await Driver(ledger).ask(admit_request(session, request_id, attempt_id=attempt_id))


async def info(ledger: Ledger, session: SessionOpened) -> Info:
    return await Driver(ledger).info(session)


async def assert_ledger_consistent(ledger: Ledger) -> None:
    assert await Driver(ledger).audit_findings() == ()


def is_granted(decision: object) -> bool:
    return isinstance(decision, Admission) and decision.is_grant
