"""`quintain.lease`: a hosted target driven without superred, over a broker in memory."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import quintain
from quintain.bus.memory import MemoryBroker
from quintain.contracts.credentials import SessionToken
from quintain.controller.leased_target import LeasedTarget
from quintain.errors import ConfigError, NoAnswer
from quintain.remote.child_session import ChildSessionPolicy
from quintain.remote.lease import TargetTimeouts
from quintain.target import (
    ControllableInjection,
    Event,
    EventResponse,
)
from quintain_host.host import Host
from quintain_view.trajectory_files import read_trajectory, trajectory_names
from quintain_view.trajectory_page import RunState
from support.target_placements import TargetScript, scripted_target_class
from support.waiting import wait_until

Emit = Callable[[Any], None]
Send = Callable[[Any], Awaitable[Any]]

Bot: Any = scripted_target_class("ours")


async def converse(target: Any, emit: Emit, send: Send) -> None:
    """Ask for a value and show it."""
    response = await send(target.request_event("hello"))
    emit(target.observation_event(getattr(response, "value", "as it was")))


@dataclass
class BotHost:
    """A host of two slots, whose bots do what the script says."""

    memory: MemoryBroker = field(default_factory=MemoryBroker)
    script: TargetScript = converse
    instances: list[Any] = field(default_factory=list)

    def make(self) -> Any:
        self.instances.append(Bot(self.script))
        return self.instances[-1]

    def lease(self, name: str = "bot", **options: Any) -> AbstractAsyncContextManager[LeasedTarget]:
        return quintain.lease(name, memory=self.memory, **options)


@pytest.fixture
async def host() -> AsyncIterator[BotHost]:
    bots = BotHost()
    bus = bots.memory.connect()
    host = Host(bus, "bot", bots.make, 2)
    await host.start()
    yield bots
    await host.stop(0)
    await bus.close()
    bots.memory.close()


async def inject(event: Any) -> EventResponse:
    return ControllableInjection(event=event, controllable=event.controllable, value="put in")


def in_words(trajectory: quintain.FilteredTrajectory) -> list[str]:
    """The items of a run: what was asked, put in and shown."""
    return [
        next((str(getattr(item, name)) for name in ("value", "request", "content") if hasattr(item, name)), "left")
        for item in trajectory.snapshot()
    ]


async def test_a_target_is_configured_run_queried_and_reset(host: BotHost) -> None:
    async with host.lease() as target:
        assert [spec.name for spec in target.config_specs] == ["persona"]
        assert [spec.name for spec in target.query_specs] == ["runs"]
        await target.set_config("persona", "terse")
        assert [each.name for each in await target.get_controllables()] == ["question", "voice of terse"]
        assert [each.content for each in await target.get_observables()] == [{"persona": "terse"}]
        first = await target.run(on_event=inject)
        second = await target.run()
        assert (in_words(first), in_words(second)) == (["hello", "put in", "put in"], ["hello", "left", "as it was"])
        assert target.trajectory is second
        assert len(json.loads(first.to_json())) == 3
        assert await target.query("runs", since="reset") == "2"
        await target.reset()
        assert await target.query("runs", since="reset") == "0"
        with pytest.raises(ValueError, match="There is no slot 'mood'"):
            await target.set_config("mood", "good")
        with pytest.raises(TypeError, match="of type int"):
            await target.set_config("persona", 1)  # type: ignore[arg-type]
    assert host.instances[-1].torn_down


async def test_three_tasks_on_two_slots_wait_without_blocking_the_loop(host: BotHost) -> None:
    async def dwell(target: Any, emit: Emit, send: Send) -> None:
        await asyncio.sleep(0.3)
        await converse(target, emit, send)

    host.script = dwell
    running = peak = 0

    async def attack() -> list[str]:
        nonlocal running, peak
        async with host.lease(scope="user") as target:
            running += 1
            peak = max(peak, running)
            trajectory = await target.run(on_event=inject)
            running -= 1
            return in_words(trajectory.filtered)

    # Its events are answered on the loop on which the third one waits.
    assert await asyncio.gather(*(attack() for _ in range(3))) == [["hello", "put in"]] * 3
    assert peak == 2


async def test_a_tag_that_the_target_does_not_have_is_refused_and_the_slot_is_free_again(host: BotHost) -> None:
    for _ in range(3):
        with pytest.raises(ConfigError, match="has no tag mail.*it has root, root/user, root/tools"):
            async with host.lease(scope=["user", "mail"]):
                pass
    async with host.lease(read_only="user"):
        pass


async def test_a_target_without_a_slot_for_a_session_is_given_none(host: BotHost) -> None:
    terms = ChildSessionPolicy(targets=["model"], token=SessionToken.mint().text)
    with pytest.raises(ConfigError, match="declares no configuration slot 'quintain_session'"):
        async with host.lease(child_session=terms):
            pass


async def test_a_second_run_at_the_same_time_is_refused(host: BotHost) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def wait(event: Event) -> None:
        asked.set()
        await answer.wait()

    async with host.lease() as target:
        run = asyncio.create_task(target.run(on_event=wait))
        await asked.wait()
        with pytest.raises(RuntimeError, match="goes on"):
            await target.run()
        answer.set()
        assert in_words(await run)[-1] == "as it was"


async def test_each_run_is_recorded_for_the_view(host: BotHost, tmp_path: Path) -> None:
    async with host.lease(trajectories=tmp_path) as target:
        for title in ("first", "second"):
            await target.run(on_event=inject, title=title)
    records = [read_trajectory(tmp_path, name) for name in reversed(trajectory_names(tmp_path))]
    assert [record.start and record.start.title for record in records] == ["first", "second"]
    for record in records:
        assert record.state is RunState.ENDED
        assert [line.kind for line in record.lines] == ["send", "reply", "emit", "end"]


async def test_a_name_that_nobody_serves_and_a_slot_that_is_not_free_in_time_are_errors(
    host: BotHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quintain.controller.leased_target.WAITING_SECONDS", 0.5)
    with pytest.raises(NoAnswer, match="No host serves target 'nobody'"):
        async with host.lease("nobody"):
            pass
    async with host.lease(), host.lease() as second:
        soon = TargetTimeouts(slot_seconds=0.5)
        with pytest.raises(NoAnswer):
            async with host.lease(timeouts=soon):
                pass

        async def third() -> str:
            async with host.lease() as target:
                return target.host_id

        with caplog.at_level(logging.WARNING, "quintain.controller"):
            waiting = asyncio.create_task(third())
            await wait_until(lambda: "waited for" in caplog.text, seconds=20)
        assert not waiting.done()
    assert await waiting == second.host_id


async def test_a_cancelled_attack_gives_its_slot_back(host: BotHost) -> None:
    asked = asyncio.Event()

    async def wait(event: Event) -> None:
        asked.set()
        await asyncio.Event().wait()

    async def attack() -> None:
        async with host.lease() as target:
            await target.run(on_event=wait)

    for _ in range(3):
        asked.clear()
        task = asyncio.create_task(attack())
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await wait_until(lambda: all(each.torn_down for each in host.instances), seconds=20)
