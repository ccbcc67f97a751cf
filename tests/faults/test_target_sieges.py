"""Hosted targets as real processes, and something that dies: whoever drives one hears of it in time, keeps what was
said so far, and nothing is said twice or done again."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import HostLost
from quintain.remote.factory import RemoteFactory, remote_factory
from quintain.target.vocabulary import OURS
from quintain.timings import DEFAULT_TIMINGS, Timings
from support.command_line import CommandLine, Running, clean_environment, command_line
from support.quick import lease_variable
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest
from support.standing import Controller

#: All timings are a third of the promised ones: a loss is noticed in 3 s.
LEASE_SECONDS = 5.0
TIMINGS = DEFAULT_TIMINGS.scaled(LEASE_SECONDS / DEFAULT_TIMINGS.lease_seconds)

#: A loss is told within so many seconds, and a little more on a machine that is busy.
LOST_SECONDS = TIMINGS.host_lost_seconds + 1
MARGIN_SECONDS = 2.0

#: What a user hosts: it does in a run what its slot `does` says, and writes down what becomes of it.
BOTS = """
import asyncio, os, pathlib, time

from quintain.target import *

USER = SecurityDomainTag("user")
QUESTION = Controllable("question", USER)
SCREEN = Observable("screen", USER)
DIARY = pathlib.Path(__file__).with_name("diary")


class Bot(Target):
    does = "talk"

    def __init__(self):
        self.note("made")

    def note(self, what):
        with DIARY.open("a") as diary:
            diary.write(f"{os.getpid()} {what}\\n")

    config_specs = [ConfigSpec("does", USER, "what it does in a run")]
    query_specs = [QuerySpec("pid", "its process")]
    security_domain = SecurityDomain([USER])

    def set_config(self, name, value):
        self.does = value

    def query(self, name, **params):
        return str(os.getpid())

    def get_controllables(self):
        return [QUESTION]

    def get_observables(self):
        return []

    async def run(self, emit, send_event):
        self.note("run")
        emit(ObservableEvent(observable=SCREEN, content="begun"))
        try:
            await getattr(self, self.does)(emit, send_event)
        except asyncio.CancelledError:
            self.note("cancelled")
            raise

    async def talk(self, emit, send_event, pause=0.0):
        for number in range(200):
            emit(ObservableEvent(observable=SCREEN, content=f"say {number}"))
            response = await send_event(ControllablePreCallEvent(controllable=QUESTION, request=f"ask {number}"))
            emit(ObservableEvent(observable=SCREEN, content=response.value))
            await asyncio.sleep(pause)

    async def talk_slowly(self, emit, send_event):
        await self.talk(emit, send_event, 0.02)

    async def think(self, emit, send_event):
        await asyncio.Event().wait()

    async def block(self, emit, send_event):
        time.sleep(60)

    async def reset_ephemeral_state(self):
        self.note("reset")

    async def teardown(self):
        self.note("torn down")
"""

#: A controller that leases, runs, says on stdout that it holds an event, and never answers it.
HOLDER = """
import asyncio, sys
from quintain.remote.factory import remote_factory

async def main():
    factory = remote_factory(sys.argv[1], ahead=0, url=sys.argv[2])
    target = factory.create()

    async def hold(event):
        print("holding", flush=True)
        await asyncio.Event().wait()

    await target.run(lambda event: None, hold)

asyncio.run(main())
"""

WHOLE_TALK = ["begun", *(text for n in range(200) for text in (f"say {n}", f"ask {n}", f"ASK {n}"))]


class Ground:
    """A folder with the bots, and the command line that hosts them."""

    def __init__(self, shell: CommandLine, url: str, timings: Timings) -> None:
        self.shell, self.url, self.timings = shell, url, timings
        self.name = f"siege.{secrets.token_hex(4)}"
        (shell.folder / "bots.py").write_text(BOTS)

    def host(self, *words: str) -> Running:
        """Start a host, and wait until it serves."""
        host = self.shell.start("serve", "host", "bots:Bot", "--name", self.name, "--json", *words)
        host.until(lambda running: '"ready"' in running.stdout or '"hostId"' in running.stdout)
        return host

    def remote(self, **more: Any) -> RemoteFactory:
        return remote_factory(self.name, ahead=0, url=self.url, timings=self.timings, **more)

    def diary(self, what: str) -> list[int]:
        """The processes that wrote this down, one entry each time."""
        lines = (self.shell.folder / "diary").read_text().splitlines()
        return [int(pid) for pid, _, text in (line.partition(" ") for line in lines) if text == what]


@pytest.fixture
def ground(breakable_broker: BrokerUnderTest, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ground]:
    timings: Timings = getattr(request, "param", TIMINGS)
    env = {"QUINTAIN_BROKER_URL": breakable_broker.url, **lease_variable(timings.lease_seconds)}
    with command_line(tmp_path, env) as shell:
        yield Ground(shell, breakable_broker.url, timings)


@pytest.fixture
async def remote(ground: Ground) -> AsyncIterator[RemoteFactory]:
    with ground.remote() as factory:
        yield factory


def controller(answer: Callable[[Any], Awaitable[Any]] | None = None) -> Controller:
    return Controller(OURS, answer)


async def until(reached: Callable[[], object], *, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not reached():
            await asyncio.sleep(0.05)


async def lost_within(running: asyncio.Task[None], since: float) -> None:
    """The run ends with the loss of its host, in time."""
    with pytest.raises(HostLost, match="nothing was heard of it"):
        async with asyncio.timeout(LOST_SECONDS + MARGIN_SECONDS):
            await running
    assert time.monotonic() - since < LOST_SECONDS + MARGIN_SECONDS


async def over_at_once(target: Any) -> None:
    """What is left to do with a target whose host has gone takes no time."""
    async with asyncio.timeout(1):
        await target.reset_ephemeral_state()
        await target.teardown()


async def test_a_host_is_killed_while_it_waits_for_an_answer(ground: Ground, remote: RemoteFactory) -> None:
    host = ground.host()
    killed = asyncio.Event()

    async def answer(event: Any) -> Any:
        if event.request == "ask 3":
            host.kill()
            killed.set()
        return one.injects(event)

    one = controller(answer)
    target = remote.create()
    running = asyncio.create_task(one.drive(target))
    await killed.wait()
    await lost_within(running, time.monotonic())
    assert one.said()[-2:] == ["say 3", "ask 3"]
    assert one.said() == WHOLE_TALK[: len(one.said())]
    await over_at_once(target)


@pytest.mark.parametrize("does", ["think", "block"])
async def test_a_host_is_killed_while_its_target_works(ground: Ground, remote: RemoteFactory, does: str) -> None:
    host = ground.host()
    target = remote.create()
    target.set_config("does", does)
    one = controller()
    running = asyncio.create_task(one.drive(target))
    await until(lambda: one.seen)
    host.kill()
    await lost_within(running, time.monotonic())
    assert one.said() == ["begun"]
    await over_at_once(target)
    # The next one is another host's.
    ground.host()
    again = remote.create()
    await one.drive(again)
    await again.teardown()


async def test_a_hosts_loss_between_runs_is_told_by_the_next_thing_asked(ground: Ground, remote: RemoteFactory) -> None:
    host = ground.host()
    target = remote.create()
    host.kill()
    began = time.monotonic()
    with pytest.raises(HostLost):
        await asyncio.to_thread(target.set_config, "does", "think")
    assert time.monotonic() - began < LOST_SECONDS + MARGIN_SECONDS
    with pytest.raises(HostLost):
        async with asyncio.timeout(1):
            await target.run(lambda event: None, lambda event: None)
    await over_at_once(target)


async def test_a_slots_process_is_killed_and_takes_only_itself_along(ground: Ground) -> None:
    ground.host("--slots", "2", "--isolation", "process")
    with ground.remote(concurrency=2) as factory:
        targets = [factory.create(), factory.create()]
        pids = [int(target.query("pid")) for target in targets]
        assert pids[0] != pids[1]
        for target in targets:
            target.set_config("does", "talk_slowly")
        doomed, other = controller(), controller()
        runs = [asyncio.create_task(one.drive(target)) for one, target in zip((doomed, other), targets, strict=True)]
        await until(lambda: len(doomed.seen) > 20)
        os.kill(pids[0], signal.SIGKILL)
        await runs[1]
        assert other.said() == WHOLE_TALK
        await lost_within(runs[0], time.monotonic())
        await asyncio.gather(*(target.teardown() for target in targets))
        # The one that died was started again: both slots can be had.
        again = [await asyncio.to_thread(factory.create) for _ in range(2)]
        assert len({target.query("pid") for target in again}) == 2
        await asyncio.gather(*(target.teardown() for target in again))


# A broker is away for longer than the hosts of the other tests may be silent.
@pytest.mark.parametrize("ground", [DEFAULT_TIMINGS], indirect=True)
async def test_the_broker_is_restarted_in_a_run(ground: Ground, broker_admin: BrokerAdmin) -> None:
    ground.host()
    away: list[float] = []

    async def answer(event: Any) -> Any:
        if event.request == "ask 100":
            began = time.monotonic()
            await asyncio.to_thread(broker_admin.stop_app)
            await asyncio.to_thread(broker_admin.start_app)
            away.append(time.monotonic() - began)
        return one.injects(event)

    one = controller(answer)
    with ground.remote() as factory:
        target = factory.create()
        running = asyncio.create_task(one.drive(target))
        async with asyncio.timeout(100):
            await asyncio.wait([running])
        assert len(ground.diary("run")) == 1
        if isinstance(running.exception(), HostLost):
            # On a machine so busy that the broker was away for longer than a host may be: still nothing came twice.
            assert away[0] > 4, away
            assert one.said() == WHOLE_TALK[: len(one.said())]
            return
        assert one.said() == WHOLE_TALK
        assert target.query("pid")
        await target.teardown()


async def test_a_controller_is_killed_while_it_holds_an_event(ground: Ground) -> None:
    ground.host()
    script = ground.shell.folder / "holder.py"
    script.write_text(HOLDER)
    with subprocess.Popen(
        [sys.executable, str(script), ground.name, ground.url],
        env=clean_environment() | lease_variable(LEASE_SECONDS),
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "holding\n"
        holder.kill()
    await until(lambda: ground.diary("torn down")[1:], seconds=LOST_SECONDS + MARGIN_SECONDS)  # the first: the probe's
    assert len(ground.diary("cancelled")) == 1
    with ground.remote() as factory:  # the slot is free again
        target = await asyncio.to_thread(factory.create)
        await controller().drive(target)
        await target.teardown()


async def test_a_host_that_is_asked_to_stop_lets_its_run_end(ground: Ground, remote: RemoteFactory) -> None:
    host = ground.host()
    one = controller()
    target = remote.create()
    target.set_config("does", "talk_slowly")
    running = asyncio.create_task(one.drive(target))
    await until(lambda: len(one.seen) > 20)
    stopping = asyncio.create_task(asyncio.to_thread(host.stop))
    await running
    assert one.said() == WHOLE_TALK
    await target.teardown()
    ended = await stopping
    assert ended.code == 0, json.dumps(ended.stderr)
    assert len(ground.diary("torn down")) == 2  # the probe's, and this one
