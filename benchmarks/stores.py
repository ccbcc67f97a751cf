"""What the ledger does in a second on SQLite and on PostgreSQL, in turn in the same run, without a broker.

    python benchmarks/stores.py
    python benchmarks/stores.py --batch 64 --batches 2

A call is an admit and a settle; both come in batches, as from a worker, and several batches are under way. A heartbeat
renews the lease of one of 200 workers that run 100 calls each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import OutputMessage, Result, TokenUsage
from quintain.contracts.ledger import (
    Admission,
    Admit,
    AdmitBatch,
    AttemptOutcome,
    Heartbeat,
    LeaseRenewed,
    Register,
    Settle,
    TargetCard,
)
from quintain.contracts.session import OpenSession, SessionOpened
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.ledger import leases, sessions
from quintain_metadata.store.base import Ledger, Moment, SqlProgram
from quintain_metadata.store.opening import open_ledger
from servers import durable_postgres, fresh_database

STORES = ("sqlite", "postgres")
WORKERS, CALLS_PER_WORKER = 200, 100
LEASE_MS = 3_600_000

#: A target runs 10,000 calls at most.
TARGETS = ("one", "two", "three")


class Store:
    """A ledger with one session, three targets and 200 workers."""

    def __init__(self, ledger: Ledger, session: SessionOpened) -> None:
        self.ledger, self.session, self.queue = ledger, session, AdmissionQueue(ledger)

    @classmethod
    async def open(cls, url: str) -> Store:
        """Open the ledger, and register the workers."""
        ledger = await open_ledger(url)
        cards = [TargetCard(name=name, provider="mock", max_concurrency=10_000) for name in TARGETS]
        for number in range(WORKERS):
            registration = Register(
                worker_id=f"w{number}", incarnation=f"w{number}", targets=cards, protocol=PROTOCOL_VERSION
            )
            await ledger.transact(partial(_register, registration=registration))
        request = OpenSession(default_target=TARGETS[0], max_calls=10_000_000)
        return cls(
            ledger,
            await ledger.transact(lambda moment: sessions.open_session(moment.now, request, SessionToken.mint(), None)),
        )

    async def admit(self, worker: str, count: int, target: str = TARGETS[0]) -> list[Admit]:
        """Admit a batch of new calls of a worker."""
        admits = [
            Admit(
                token=self.session.token,
                request_id=secrets.token_hex(8),
                attempt_id=secrets.token_hex(8),
                target=target,
                body_sha256="body",
            )
            for _ in range(count)
        ]
        await self.queue.admit(AdmitBatch(incarnation=worker, items=admits), _expect_grants)
        return admits

    async def settle(self, admits: list[Admit]) -> None:
        """Settle a batch of calls with a short answer."""
        usage = TokenUsage(input=10, output=5)
        result = Result(
            output=[OutputMessage(content="yes")],
            target=TARGETS[0],
            call_count=1,
            max_calls=1,
            token_usage=usage,
        )
        settles = [
            Settle(
                session_id=self.session.session_id,
                request_id=admit.request_id,
                attempt_id=admit.attempt_id,
                outcome=AttemptOutcome.RESULT,
                reply=result.to_wire().decode(),
                token_usage=usage,
            )
            for admit in admits
        ]
        outcomes = await self.queue.operations.run(settles)
        self.queue.on_ended(zip(settles, outcomes, strict=True))

    async def calls_per_second(self, options: argparse.Namespace) -> float:
        """Admit and settle for so many seconds."""
        done, began = 0, time.perf_counter()

        async def worker(name: str) -> None:
            nonlocal done
            while time.perf_counter() - began < options.seconds:
                await self.settle(await self.admit(name, options.batch))
                done += options.batch

        await asyncio.gather(*(worker(f"w{number % 3}") for number in range(options.batches)))
        return done / (time.perf_counter() - began)

    async def heartbeats_per_second(self, options: argparse.Namespace) -> float:
        """Renew one lease after another for so many seconds."""
        done, began = 0, time.perf_counter()
        while (seconds := time.perf_counter() - began) < options.seconds:
            names = [f"w{(done + offset) % WORKERS}" for offset in range(options.heartbeats)]
            beats = [Heartbeat(worker_id=name, incarnation=name) for name in names]
            await self.ledger.transact(partial(_renew, heartbeats=beats))
            done += options.heartbeats
        return done / seconds


def _register(moment: Moment, registration: Register) -> SqlProgram[LeaseRenewed]:
    return leases.register_worker(moment.now, registration, LEASE_MS)


def _renew(moment: Moment, heartbeats: list[Heartbeat]) -> SqlProgram[list[LeaseRenewed]]:
    return leases.renew_leases(moment.now, [(each, leases.DEFAULT_USER) for each in heartbeats], LEASE_MS)


async def _expect_grants(answers: list[Admission], _: list[str]) -> None:
    assert all(answer.fault is None for answer in answers), answers


async def measure(url: str, options: argparse.Namespace) -> tuple[float, float]:
    """Return the calls and the heartbeats of a second."""
    store = await Store.open(url)
    rate = await store.calls_per_second(options)
    for number in range(WORKERS if options.heartbeats else 0):
        for _ in range(0, CALLS_PER_WORKER, 50):
            await store.admit(f"w{number}", 50)
    heartbeats = await store.heartbeats_per_second(options) if options.heartbeats else 0.0
    await store.ledger.close()
    return rate, heartbeats


def main() -> None:
    """Measure both stores in turn, and print each round and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8, help="calls in a batch")
    parser.add_argument("--batches", type=int, default=6, help="batches under way")
    parser.add_argument("--heartbeats", type=int, default=16, help="heartbeats in a transaction; 0: do not measure")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each measurement takes")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each store, in turn")
    options = parser.parse_args()
    rates: dict[str, list[tuple[float, float]]] = {store: [] for store in STORES}
    with durable_postgres() as server_url:
        for _ in range(options.rounds):
            for store in STORES:
                with contextlib.ExitStack() as stack:
                    folder = stack.enter_context(tempfile.TemporaryDirectory())
                    sqlite_url = f"sqlite://{Path(folder) / 'ledger.sqlite3'}"
                    url = sqlite_url if store == "sqlite" else stack.enter_context(fresh_database(server_url))
                    rates[store].append(asyncio.run(measure(url, options)))
                calls_rate, heartbeat_rate = rates[store][-1]
                print(f"{store}: {calls_rate:.0f} calls/s, {heartbeat_rate:.0f} heartbeats/s", flush=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians, SQLite : PostgreSQL")
    for name, column in (("calls/s", 0), ("heartbeats/s", 1)):
        sqlite, postgres = (statistics.median(one[column] for one in rates[store]) for store in STORES)
        if sqlite:
            print(f"{name}: {sqlite:.0f} : {postgres:.0f}, 1 : {postgres / sqlite:.2f}")


if __name__ == "__main__":
    main()
