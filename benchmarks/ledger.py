"""The cost of a settle with none and with 2,000 admits waiting, on SQLite in memory, without a broker.

    python benchmarks/ledger.py
    python benchmarks/ledger.py --held 8000

Half of the waiting admits join calls that run, half wait for the capacity of a target at its limit. A settle is one
operation on the ledger, and what the admission queue does after it. The processor time of this process is measured,
and no disk is written: both would hide what the waiting admits cost. The exit code is 1 if a settle costs more than
1.3 times as much beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import time

from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import OutputMessage, Result
from quintain.contracts.ledger import Admission, Admit, AdmitBatch, AttemptOutcome, Register, Settle, TargetCard
from quintain.contracts.session import OpenSession, SessionOpened
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.ledger import leases, sessions
from quintain_metadata.store.base import Ledger
from quintain_metadata.store.opening import open_ledger

WORKER = "w1"
ROUNDS, SETTLES_PER_ROUND = 10, 50
MAX_RATIO = 1.3


class Bench:
    """A ledger with an admission queue and one session."""

    def __init__(self, ledger: Ledger, session: SessionOpened) -> None:
        self.ledger, self.session, self.queue = ledger, session, AdmissionQueue(ledger)

    async def admit(self, target: str, request_ids: list[str]) -> list[Admit]:
        """Send one batch of admits."""
        admits = [
            Admit(
                token=self.session.token,
                request_id=request_id,
                attempt_id=secrets.token_hex(8),
                target=target,
                body_sha256="body",
            )
            for request_id in request_ids
        ]
        await self.queue.admit(AdmitBatch(incarnation=WORKER, items=admits), _ignore)
        return admits

    async def seconds_per_settle(self) -> float:
        """Admit and settle calls of a target with room, one after another; returns the seconds of one settle."""
        ids = [secrets.token_hex(8) for _ in range(SETTLES_PER_ROUND)]
        admits = await self.admit("free", ids)
        result = Result(output=[OutputMessage(content="yes")], target="free", call_count=1, max_calls=1)
        began = time.process_time()
        for admit in admits:
            settle = Settle(
                session_id=self.session.session_id,
                request_id=admit.request_id,
                attempt_id=admit.attempt_id,
                outcome=AttemptOutcome.RESULT,
                reply=result.to_wire().decode(),
            )
            outcomes = await self.queue.operations.run([settle])
            self.queue.on_ended(zip([settle], outcomes, strict=True))
        return (time.process_time() - began) / SETTLES_PER_ROUND

    async def seconds_per_sweep(self) -> float:
        """Return the seconds of one sweep over the waiting admits."""
        began = time.process_time()
        await self.queue.retry_waiting()
        return time.process_time() - began


async def _ignore(_: list[Admission], __: list[str]) -> None:
    pass


async def open_bench(held: int) -> Bench:
    """Open a ledger of its own with so many waiting admits."""
    ledger = await open_ledger("sqlite://")
    limits = {"free": 10_000, "joined": 10_000, "full": 1}
    cards = [TargetCard(name=name, provider="mock", max_concurrency=limit) for name, limit in limits.items()]
    registration = Register(worker_id=WORKER, incarnation=WORKER, targets=cards, protocol=PROTOCOL_VERSION)
    await ledger.transact(lambda moment: leases.register_worker(moment.now, registration, lease_ms=3_600_000))
    request = OpenSession(default_target="free", max_calls=10_000_000)
    session = await ledger.transact(
        lambda moment: sessions.open_session(moment.now, request, SessionToken.mint(), None)
    )
    bench = Bench(ledger, session)
    await bench.queue.refresh()
    for start in range(0, held // 2, 50):
        ids = [f"joined {number}" for number in range(start, min(start + 50, held // 2))]
        await bench.admit("joined", ids)
        await bench.admit("joined", ids)
        await bench.admit("full", [f"full {name}" for name in ids])
    return bench


async def main(held: int) -> int:
    """Print both costs and their ratio; returns the exit code."""
    benches = [await open_bench(0), await open_bench(held)]
    taken: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for bench, seconds in zip(benches, taken, strict=True):
            seconds.append(await bench.seconds_per_settle())
    none, beside = (statistics.median(seconds) * 1e6 for seconds in taken)
    waiting = benches[1].queue.waiting_count
    sweep = statistics.median([await benches[1].seconds_per_sweep() for _ in range(ROUNDS)])
    print(f"a settle with none waiting: {none:.0f} µs; with {waiting} waiting: {beside:.0f} µs: {beside / none:.2f} x")
    print(f"a sweep of {waiting} waiting: {sweep * 1000:.1f} ms")
    for bench in benches:
        await bench.ledger.close()
    return int(beside > MAX_RATIO * none)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--held", type=int, default=2_000, help="how many admits wait")
    raise SystemExit(asyncio.run(main(parser.parse_args().held)))
