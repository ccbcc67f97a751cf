"""The rows of the benchmark over AMQP: Quintain with budgets and a ledger on disk, beside a bare aio-pika loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sqlite3
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from closed_loop import at_once
from harness import CONFIG, Fleet, Result, Side, compare, compare_started, listening_process, process, running_fleet
from quintain import Client
from quintain.contracts.invoke import InvokeRequest
from raw_rpc import raw_rpc_client

HERE = Path(__file__).parent
QUESTION = "How are you?"
BODY = b'{"question": "How are you?"}'


@dataclass(frozen=True, slots=True)
class Options:
    """Where the broker is, how long a round takes in seconds, and how many rounds there are."""

    url: str
    folder: Path
    seconds: float
    rounds: int

    @property
    def broker_pid(self) -> dict[str, int]:
        """The broker's process, if it is on this machine."""
        return listening_process(self.url, "broker")


@contextlib.asynccontextmanager
async def bare_loop(options: Options, *, body: bytes = BODY, delay: float = 0, servers: int = 1) -> AsyncIterator[Side]:
    """The reference of every table: request and reply over plain aio-pika."""
    with contextlib.ExitStack() as stack:
        words = [str(HERE / "raw_rpc.py"), options.url, str(delay)]
        names = [f"server {number + 1}" for number in range(servers)] if servers > 1 else ["server"]
        pids = {name: stack.enter_context(process(words, "ready")) for name in names}
        async with raw_rpc_client(options.url) as raw:
            yield Side(name="bare loop", call=lambda: raw(body), processes={**pids, **options.broker_pid})


def sdk_side(name: str, fleet: Fleet, client: Client, **request: str) -> Side:
    """Calls of the SDK, one message each."""
    asked = InvokeRequest.model_validate({"question": QUESTION, **request})
    return Side(name=name, call=lambda: client.send(asked), processes=fleet.pids)


async def in_flight(
    options: Options, levels: tuple[int, ...] = (1, 10, 100, 1000), only: Collection[str] = ()
) -> list[Result]:
    """One call after another at so many callers: with and without a target, from the SDK and a plain client.

    With ``only`` these sides alone are measured beside the bare loop.
    """
    results = []
    with running_fleet(options.url, options.folder, broker_pid=options.broker_pid) as fleet:
        token = (await fleet.open_session()).token
        async with (
            bare_loop(options) as bare,
            fleet.client() as client,
            raw_rpc_client(options.url, token) as plain,
        ):
            sides = [
                bare,
                sdk_side("SDK, target named", fleet, client, target="bench"),
                sdk_side("SDK, no target", fleet, client),
                Side(name="plain client, no target", call=lambda: plain(BODY), processes=fleet.pids),
            ]
            sides = [side for side in sides if not only or side is bare or side.name in only]
            for level in levels:
                results += await compare("calls in flight", str(level), sides, level, options.seconds, options.rounds)
    return results


async def long_calls(options: Options, calls: int = 1000) -> list[Result]:
    """So many calls of 1 s at once: the time of all of them is the p50 of their row."""
    with running_fleet(options.url, options.folder, slow_config(1000, calls), broker_pid=options.broker_pid) as fleet:
        async with bare_loop(options, delay=1) as bare, fleet.client() as client:
            sides = [together(bare, calls), together(sdk_side("SDK, target named", fleet, client), calls)]
            return await compare("calls of 1 s, all at once", f"{calls:,}", sides, 1, 0.1, options.rounds)


async def batches(options: Options) -> list[Result]:
    """`invoke_batch` beside as many calls of the bare loop at once."""
    results = []
    with running_fleet(options.url, options.folder, broker_pid=options.broker_pid) as fleet:
        async with bare_loop(options) as bare, fleet.client() as client:
            for size in (10, 100, 1000):
                batch = Side(
                    name="invoke_batch",
                    call=partial(client.invoke_batch, [QUESTION] * size),
                    processes=fleet.pids,
                    weight=size,
                )
                sides = [together(bare, size), batch]
                results += await compare("batches", f"{size:,}", sides, 1, options.seconds / 2, options.rounds)
    return results


async def prompts(options: Options) -> list[Result]:
    """Ten calls in flight with prompts of 256 B, 10 kB and 1 MB."""
    results = []
    with running_fleet(options.url, options.folder, broker_pid=options.broker_pid) as fleet:
        async with fleet.client() as client:
            for size, name in ((256, "256 B"), (10_000, "10 kB"), (1_000_000, "1 MB")):
                text = "x" * size
                body = InvokeRequest(question=text).to_wire()
                async with bare_loop(options, body=body) as bare:
                    sides = [bare, sdk_side("SDK, target named", fleet, client, question=text, target="bench")]
                    results += await compare("prompts", name, sides, 10, options.seconds / 2, options.rounds)
    return results


async def workers(options: Options) -> list[Result]:
    """A provider of 50 ms with 16 slots behind 1, 2 and 4 workers, and as many servers of the bare loop."""
    results = []
    for count in (1, 2, 4):
        folder = options.folder / str(count)
        folder.mkdir()
        config = slow_config(50, 16 * count)
        with running_fleet(options.url, folder, config, workers=count, broker_pid=options.broker_pid) as fleet:
            async with bare_loop(options, delay=0.05, servers=count) as bare, fleet.client() as client:
                sides = [bare, sdk_side("SDK, target named", fleet, client, target="bench")]
                results += await compare(
                    "workers, provider of 50 ms, 16 calls in flight each",
                    str(count),
                    sides,
                    16 * count,
                    options.seconds / 2,
                    options.rounds,
                )
    return results


async def full_ledger(options: Options, calls: int = 1_000_000, sessions: int = 10_000) -> list[Result]:
    """100 calls in flight with an empty ledger, and with one of a million calls and 10,000 sessions, in turn."""
    sides = {}
    for number, name in enumerate(("empty ledger", f"{calls:,} calls, {sessions:,} sessions")):
        folder = options.folder / str(number)
        folder.mkdir()
        target = f"bench{number}"
        if number:
            async with started_fleet(options, name, folder, target):
                pass
            await asyncio.to_thread(fill_ledger, folder / "ledger.sqlite3", calls, sessions)
        sides[name] = partial(started_fleet, options, name, folder, target)
    return await compare_started("ledger", "100 in flight", sides, 100, options.seconds, options.rounds)


async def one_leader(options: Options, postgres_url: str, worker_counts: tuple[int, ...] = (1, 2, 4)) -> list[Result]:
    """The most that one metadata service takes, with more and more workers, on each store in turn."""
    results = []
    for workers in worker_counts:
        sides = {}
        for store, ledger_url in (("SQLite", ""), ("PostgreSQL", postgres_url)):
            folder = options.folder / f"{store}-{workers}"
            folder.mkdir()
            sides[store] = partial(
                started_fleet,
                options,
                store,
                folder,
                f"{store.lower()}-{workers}",
                workers=workers,
                ledger_url=ledger_url,
                processes=listening_process(ledger_url, store) if ledger_url else {},
            )
        results += await compare_started(
            "one metadata service, 512 calls in flight, by workers",
            str(workers),
            sides,
            512,
            options.seconds,
            options.rounds,
        )
    return results


@contextlib.asynccontextmanager
async def started_fleet(
    options: Options,
    name: str,
    folder: Path,
    target: str,
    *,
    workers: int = 1,
    ledger_url: str = "",
    processes: Mapping[str, int] | None = None,
) -> AsyncIterator[Side]:
    """A fleet of its own; its target has a name of its own, because all fleets are on one broker."""
    with running_fleet(
        options.url,
        folder,
        CONFIG.replace("bench", target),
        workers=workers,
        ledger_url=ledger_url,
        broker_pid={**options.broker_pid, **(processes or {})},
    ) as fleet:
        async with fleet.client(target) as client:
            yield sdk_side(name, fleet, client, target=target)


def fill_ledger(file: Path, calls: int, sessions: int) -> None:
    """Copy the one session of a ledger, and give the copies committed calls."""
    with contextlib.closing(sqlite3.connect(file)) as ledger, ledger:
        columns = [row[1] for row in ledger.execute("PRAGMA table_info(session)")]
        copied = ", ".join({"id": "'s' || n", "token_sha256": "randomblob(32)"}.get(name, name) for name in columns)
        count = "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {})"
        one = "(SELECT * FROM session LIMIT 1)"
        ledger.execute(
            f"{count.format(sessions)} INSERT INTO session ({', '.join(columns)}) SELECT {copied} FROM numbers, {one}"
        )
        ledger.execute(
            f"{count.format(calls)} INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts,"
            " attempt_id, incarnation, deadline, call_count, created_at, updated_at)"
            " SELECT 's' || (n % ?), 'r' || n, hex(randomblob(32)), 'bench1', 'committed', 1, 'a' || n, 'w', 0, 1, 0, 0"
            " FROM numbers",
            (sessions,),
        )


def slow_config(delay_ms: int, limit: int) -> str:
    """The configuration of a target whose provider takes its time."""
    return CONFIG.replace("max_concurrency: 1000", f"delay_ms: {delay_ms}, max_concurrency: {limit}")


def together(side: Side, calls: int) -> Side:
    """So many calls of this side at once, as one."""
    return dataclasses.replace(side, call=at_once(side.call, calls), weight=calls)
