"""Request and reply of other libraries over the same broker, beside the bare loop and Quintain.

A peer is a program of `peer_programs`, run by the interpreter of its own environment as a server and as a client. The
client's process measures, with the closed loop that measures every side.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from calls import Options, bare_loop, sdk_side, slow_config, together
from closed_loop import READY, ClientFailed, Load, Round, parse_round
from harness import CONFIG, Measured, NotStarted, Result, Side, compare, listening_process, process, running_fleet
from quintain.settings import environment
from servers import ClientTool, ServerUnavailable, cache_folder, durable_postgres, fresh_database

HERE = Path(__file__).parent

#: A client that has said nothing for so long after the end of its round is stopped, in seconds.
PATIENCE_SECONDS = 90.0

#: The reasons for what is not measured, by name.
Missing = dict[str, str]


#: How many calls a batch has, and how many of 1 s are made at once; FastStream makes one after another.
BATCH, LONG_CALLS = 100, 100
FEWER_LONG_CALLS = {"FastStream request()": 5}


@dataclass(frozen=True, slots=True)
class Peer:
    """A library: its program, its environment (this one if it has none), and whether it keeps results in PostgreSQL."""

    name: str
    program: str
    tool: ClientTool | None = None
    has_store: bool = False

    def python(self) -> str:
        """Its interpreter, installed first where it is missing. Raises `ServerUnavailable` where it cannot be."""
        if self.tool is None:
            return sys.executable
        self.tool.install(environment(), print)
        return str(self.tool.folder(cache_folder(environment())) / "bin" / "python")


PEERS = (
    Peer("aio_pika.patterns.RPC", "pattern_rpc"),
    Peer(
        "FastStream request()",
        "faststream_rpc",
        ClientTool(name="bench-faststream", version="0.7.8", pypi="faststream[rabbit]", beside=("aio-pika==10.2.1",)),
    ),
    Peer(
        "taskiq with PostgreSQL",
        "taskiq_rpc",
        ClientTool(
            name="bench-taskiq",
            version="0.6.1",
            pypi="taskiq-aio-pika",
            beside=("taskiq==0.13.0", "taskiq-postgres[asyncpg]==0.9.1", "aio-pika==10.2.1"),
        ),
        has_store=True,
    ),
    Peer(
        "Celery with rpc://",
        "celery_rpc",
        ClientTool(name="bench-celery", version="5.7.0", pypi="celery", beside=("kombu==5.7.0", "amqp==5.4.2")),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSide:
    """Calls of a client's process, each of ``together`` calls at once."""

    name: str
    running: asyncio.subprocess.Process
    processes: Mapping[str, int]
    together: int = 1

    async def measure(self, in_flight: int, seconds: float) -> Round:
        """Let the client measure. Raises `ClientFailed` with the name of this side."""
        assert self.running.stdin is not None
        load = Load(in_flight, seconds, self.together)
        try:
            self.running.stdin.write(json.dumps(asdict(load)).encode() + b"\n")
            return parse_round(await self.read_line(seconds + PATIENCE_SECONDS))
        except (OSError, TimeoutError, ClientFailed) as error:
            raise ClientFailed(self.name, f"{type(error).__name__}: {error}") from error

    async def read_line(self, seconds: float) -> str:
        """The client's next line; empty after its end. Raises `TimeoutError`."""
        assert self.running.stdout is not None
        return (await asyncio.wait_for(self.running.stdout.readline(), seconds)).decode()


@contextlib.asynccontextmanager
async def peer_side(peer: Peer, options: Options, delay: float, store_url: str) -> AsyncIterator[ClientSide]:
    """A peer's server and client. Raises `ServerUnavailable`, `NotStarted` or `ClientFailed` where there is none."""
    python = peer.python()
    words = ["-m", f"peer_programs.{peer.program}"]
    asked = [options.url, str(delay), store_url]
    variables = {"PYTHONPATH": str(HERE), "PYTHONUNBUFFERED": "1"}
    with process([*words, "server", *asked], READY, program=python, **variables) as server:
        running = await asyncio.create_subprocess_exec(
            python,
            *words,
            "client",
            *asked,
            env={**environment(), **variables},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert running.stdin is not None
        pids = {"client": running.pid, "server": server, **options.broker_pid}
        if peer.has_store:
            pids |= listening_process(store_url, "PostgreSQL")
        side = ClientSide(name=peer.name, running=running, processes=pids)
        try:
            if (await side.read_line(PATIENCE_SECONDS)).strip() != READY:
                raise ClientFailed(peer.name, "its client did not start")
            yield side
        finally:
            running.stdin.close()
            try:
                await asyncio.wait_for(running.wait(), 10)
            except TimeoutError:
                running.kill()
                await running.wait()


@contextlib.asynccontextmanager
async def open_sides(
    options: Options, delay: float, store_url: str, missing: Missing
) -> AsyncIterator[list[Side | ClientSide]]:
    """The bare loop, Quintain, and every peer that can be had; the others are in ``missing``."""
    folder = options.folder / str(delay)
    folder.mkdir()
    config = slow_config(int(delay * 1000), 1000) if delay else CONFIG
    async with contextlib.AsyncExitStack() as stack:
        fleet = stack.enter_context(running_fleet(options.url, folder, config, broker_pid=options.broker_pid))
        bare = await stack.enter_async_context(bare_loop(options, delay=delay))
        client = await stack.enter_async_context(fleet.client())
        sides: list[Side | ClientSide] = [bare, sdk_side("Quintain", fleet, client, target="bench")]
        for peer in PEERS:
            try:
                sides.append(await stack.enter_async_context(peer_side(peer, options, delay, store_url)))
            except (ServerUnavailable, NotStarted, ClientFailed, TimeoutError) as error:
                missing[peer.name] = str(error)
        yield sides


async def compare_available(
    table: str, row: str, sides: Sequence[Measured], load: tuple[int, float], options: Options, missing: Missing
) -> list[Result]:
    """Like `compare`, at so many callers for so long; a side that fails is left out of the row, and named."""
    print(f"{table}, {row}", flush=True)
    while True:
        try:
            return await compare(table, row, sides, *load, options.rounds)
        except ClientFailed as error:
            name, reason = error.args
            missing.setdefault(name, f"from “{table}, {row}” on: {reason}")
            sides = [side for side in sides if side.name != name]


def times(side: Side | ClientSide, calls: int) -> Side | ClientSide:
    """So many calls of this side at once, as one."""
    return together(side, calls) if isinstance(side, Side) else dataclasses.replace(side, together=calls)


def long_calls(side: Side | ClientSide) -> Side | ClientSide:
    """All calls of 1 s at once; a side that makes one after another has fewer, and says so."""
    fewer = FEWER_LONG_CALLS.get(side.name, LONG_CALLS)
    several = times(side, fewer)
    return several if fewer == LONG_CALLS else dataclasses.replace(several, name=f"{side.name}, {fewer} calls")


async def compare_queues(options: Options, missing: Missing) -> list[Result]:
    """Calls in flight and batches with an instant provider, and calls of 1 s at once."""
    results = []
    with durable_postgres() as postgres_url, fresh_database(postgres_url) as store_url:
        async with open_sides(options, 0, store_url, missing) as sides:
            for level in (1, 10, 100, 1000):
                load = (level, options.seconds)
                results += await compare_available("calls in flight", str(level), sides, load, options, missing)
            batches = [times(side, BATCH) for side in sides]
            load = (1, options.seconds / 2)
            results += await compare_available("batches", f"{BATCH} at once", batches, load, options, missing)
        async with open_sides(options, 1, store_url, missing) as sides:
            waiting = [long_calls(side) for side in sides]
            results += await compare_available(
                "calls of 1 s, all at once", str(LONG_CALLS), waiting, (1, 0.1), options, missing
            )
    return results
