"""Hosted targets as real processes, and something that dies: whoever drives one hears of it in time, keeps what was
said so far, and nothing is said twice or done again."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import HostLost
from quintain.remote.factory import RemoteFactory
from quintain.target import SecurityDomainTag
from quintain.target.type_registry import QUINTAIN_TYPES
from quintain.timings import DEFAULT_TIMINGS
from support.command_line import CommandLine, RunningCommand, command_line
from support.quick import lease_variable
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest
from support.target_placements import Controller, scripted_target_class
from support.thread_host import thread_host
from support.waiting import wait_until

#: All timings are a third of the promised ones: a loss is noticed in 3 s.
LEASE_SECONDS = 5.0
TIMINGS = DEFAULT_TIMINGS.scaled(LEASE_SECONDS / DEFAULT_TIMINGS.lease_seconds)

#: A loss is told within so many seconds, and a little more on a machine that is busy.
LOST_SECONDS = TIMINGS.host_lost_seconds + 1
MARGIN_SECONDS = 2.0

#: The bots' tag, as their driver has it.
USER = SecurityDomainTag("user")

#: What a user hosts: it does in a run what its slot `does` says.
BOTS = """
import asyncio, ctypes, os, sys

from quintain.target import *

USER = SecurityDomainTag("user")
QUESTION = Controllable("question", USER)
SCREEN = Observable("screen", USER)


class Bot(Target):
    does = "talk"

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
        emit(ObservableEvent(observable=SCREEN, content="begun"))
        await getattr(self, self.does)(emit, send_event)

    async def talk(self, emit, send_event, pause=0.0):
        for number in range(200):
            emit(ObservableEvent(observable=SCREEN, content=f"say {number}"))
            response = await send_event(ControllablePreCallEvent(controllable=QUESTION, request=f"ask {number}"))
            emit(ObservableEvent(observable=SCREEN, content=response.value))
            await asyncio.sleep(pause)

    async def talk_slowly(self, emit, send_event):
        await self.talk(emit, send_event, 0.02)

    async def think(self, emit, send_event):
        print("my last words", file=sys.stderr, flush=True)
        await asyncio.Event().wait()

    async def hold_lock(self, emit, send_event):
        # As a regular expression does, but for a known time: a function of PyDLL keeps the interpreter's lock.
        ctypes.PyDLL(None).usleep(int(float(os.environ["BOT_HOLD_SECONDS"]) * 1_000_000))
        emit(ObservableEvent(observable=SCREEN, content="free again"))

    async def reset_ephemeral_state(self):
        pass

    async def teardown(self):
        pass
"""


#: However busy the machine is, its broker is away for less time than this host and its controller may be silent.
PATIENT_TIMINGS = DEFAULT_TIMINGS.scaled(20)

EXPECTED_EVENTS = ["begun", *(text for n in range(200) for text in (f"say {n}", f"ask {n}", f"ASK {n}"))]


class BotHosts:
    """A folder with the bots, and the command line that hosts them."""

    def __init__(self, shell: CommandLine, url: str) -> None:
        self.shell, self.url = shell, url
        self.name = f"target.{secrets.token_hex(4)}"
        (shell.folder / "bots.py").write_text(BOTS)

    def host(self, *words: str) -> RunningCommand:
        """Start a host, and wait until it serves."""
        host = self.shell.start("serve", "host", "bots:Bot", "--name", self.name, "--json", *words)
        host.wait_for(lambda running: '"ready"' in running.stdout or '"hostId"' in running.stdout)
        return host

    def open_factory(self, **options: Any) -> RemoteFactory:
        return RemoteFactory(self.name, url=self.url, timings=TIMINGS, tags=[USER], **{"prefetch": 0, **options})


@pytest.fixture
def bot_hosts(breakable_broker: BrokerUnderTest, tmp_path: Path) -> Iterator[BotHosts]:
    env = {"QUINTAIN_BROKER_URL": breakable_broker.url, **lease_variable(LEASE_SECONDS)}
    with command_line(tmp_path, env) as shell:
        yield BotHosts(shell, breakable_broker.url)


@pytest.fixture
async def remote(bot_hosts: BotHosts) -> AsyncIterator[RemoteFactory]:
    with bot_hosts.open_factory() as factory:
        yield factory


def controller(answer: Callable[[Any], Awaitable[Any]] | None = None) -> Controller:
    return Controller(QUINTAIN_TYPES, answer)


async def assert_lost_in_time(running: asyncio.Task[None], since: float) -> None:
    """The run ends with the loss of its host, in time."""
    with pytest.raises(HostLost, match="nothing was heard of it"):
        async with asyncio.timeout(LOST_SECONDS + MARGIN_SECONDS):
            await running
    assert time.monotonic() - since < LOST_SECONDS + MARGIN_SECONDS


async def assert_closes_at_once(target: Any) -> None:
    """What is left to do with a target whose host has gone takes no time."""
    async with asyncio.timeout(1):
        await target.reset_ephemeral_state()
        await target.teardown()


@pytest.mark.parametrize("does", ["talk", "think"], ids=["waits for an answer", "works"])
async def test_a_host_is_killed_in_a_run(bot_hosts: BotHosts, remote: RemoteFactory, does: str) -> None:
    host, killed = bot_hosts.host(), asyncio.Event()

    async def answer(event: Any) -> Any:
        if event.request == "ask 3":
            host.kill()
            killed.set()
        return one.injection(event)

    one, target = controller(answer), remote.create()
    target.set_config("does", does)
    running = asyncio.create_task(one.drive(target))
    if does == "think":
        await wait_until(lambda: one.seen)
        host.kill()
        killed.set()
    await killed.wait()
    await assert_lost_in_time(running, time.monotonic())
    assert one.contents() == EXPECTED_EVENTS[: 1 if does == "think" else 12]
    await assert_closes_at_once(target)
    # The next one is another host's.
    bot_hosts.host()
    again = await asyncio.to_thread(remote.create)
    await controller().drive(again)
    await again.teardown()


async def test_a_hosts_loss_between_runs_is_told_by_the_next_thing_asked(
    bot_hosts: BotHosts, remote: RemoteFactory
) -> None:
    host = bot_hosts.host()
    target = remote.create()
    host.kill()
    began = time.monotonic()
    with pytest.raises(HostLost):
        await asyncio.to_thread(target.set_config, "does", "think")
    assert time.monotonic() - began < LOST_SECONDS + MARGIN_SECONDS
    with pytest.raises(HostLost):
        async with asyncio.timeout(1):
            await target.run(lambda event: None, lambda event: None)
    await assert_closes_at_once(target)


async def test_a_slots_process_is_killed_and_takes_only_itself_along(bot_hosts: BotHosts) -> None:
    host = bot_hosts.host("--slots", "2", "--isolation", "process")
    with bot_hosts.open_factory(concurrency=2) as factory:
        targets = [factory.create(), factory.create()]
        pids = [int(target.query("pid")) for target in targets]
        assert pids[0] != pids[1]
        targets[0].set_config("does", "think")
        targets[1].set_config("does", "talk_slowly")
        doomed, other = controller(), controller()
        runs = [asyncio.create_task(one.drive(target)) for one, target in zip((doomed, other), targets, strict=True)]
        await wait_until(lambda: len(other.seen) > 20 and "my last words" in host.stderr)
        os.kill(pids[0], signal.SIGKILL)
        # The host says so itself: nobody waits for its silence.
        with pytest.raises(HostLost, match=rf"on host \S+-{pids[0]}-\w+ is over: its process ended with -9") as caught:
            await runs[0]
        assert "my last words" in "".join(caught.value.__notes__)
        await runs[1]
        assert other.contents() == EXPECTED_EVENTS
        await asyncio.gather(*(target.teardown() for target in targets))
        # The one that died was started again: both slots can be had.
        again = [await asyncio.to_thread(factory.create) for _ in range(2)]
        assert len({target.query("pid") for target in again}) == 2
        await asyncio.gather(*(target.teardown() for target in again))


async def test_a_target_that_holds_its_interpreters_lock_is_not_lost(
    bot_hosts: BotHosts, remote: RemoteFactory
) -> None:
    held = {"BOT_HOLD_SECONDS": f"{TIMINGS.host_lost_seconds + 1:g}"}
    bot_hosts.host("--isolation", "process", *(f"--env={name}={value}" for name, value in held.items()))
    target = await asyncio.to_thread(remote.create)
    target.set_config("does", "hold_lock")
    one = controller()
    await one.drive(target)
    assert one.contents() == ["begun", "free again"]
    await target.teardown()


@pytest.mark.every_broker
@pytest.mark.timeout(300)
async def test_the_broker_is_restarted_in_a_run(breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin) -> None:
    async def talk(target: Any, emit: Callable[[Any], None], send: Callable[[Any], Awaitable[Any]]) -> None:
        emit(target.observation_event("begun"))
        for number in range(200):
            emit(target.observation_event(f"say {number}"))
            emit(target.observation_event((await send(target.request_event(f"ask {number}"))).value))

    async def answer(event: Any) -> Any:
        if event.request == "ask 100":
            await asyncio.to_thread(broker_admin.stop_app)
            await asyncio.to_thread(broker_admin.start_app)
        return one.injection(event)

    bot, one, url = scripted_target_class("ours"), controller(answer), breakable_broker.url
    tags = [bot.user, bot.tools]  # type: ignore[attr-defined]
    with (
        thread_host(url, 1, PATIENT_TIMINGS) as host,
        RemoteFactory(host.name, url=url, timings=PATIENT_TIMINGS, tags=tags, prefetch=0) as factory,
    ):
        host.serve(lambda: bot(talk))
        target = await asyncio.to_thread(factory.create)
        await one.drive(target)
        assert one.contents() == EXPECTED_EVENTS
        assert target.query("runs", since="lease") == "1"
        await target.teardown()
