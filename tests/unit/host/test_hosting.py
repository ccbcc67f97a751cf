"""A host under what it should never meet: garbage, targets that leave, block, flood or cancel themselves; its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from quintain.bus.base import Bus, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller, Question
from quintain.contracts.hosted import RUN_HEARS, AskLease, WireEvent
from quintain.contracts.invoke import FaultReply
from quintain.errors import BadRequest, HostLost, RemoteTargetError
from quintain.remote.lease import RemoteLease, lease
from quintain.remote.line import Here
from quintain.remote.performing import RemoteRun
from quintain.remote.run import Ear
from quintain.routes import LEASE, QUERY, SET_CONFIG, TEARDOWN
from quintain.target.codec import Codec
from quintain.target.vocabulary import OURS
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import HOST, RUN, run_topology
from quintain_host.host import Host
from quintain_host.stage import Stage
from quintain_host.telling import MOST_EVENT_CHARACTERS, MOST_UNHEARD, Telling
from support.quick import QUICK
from support.standing import Controller, Script, scripted

BODY = scripted("ours")


@dataclass
class Hosting:
    """One host of one slot, and a controller's end of the same bus."""

    host: Host
    bus: Bus
    caller: Caller
    timings: Timings

    async def lease(self, timeout_seconds: float = 10) -> RemoteLease:
        return await lease(self.bus, self.caller, "it", timeout_seconds=timeout_seconds, timings=self.timings)

    async def run(self, leased: RemoteLease, controller: Controller) -> None:
        ear = Ear(self.bus)
        await RemoteRun(Here(), leased, ear, Codec(OURS), controller.emit, controller.send).perform()
        await ear.close()

    async def says(self, key: str, kind: str, body: bytes) -> None:
        await self.bus.publish(HOST, key, Envelope(body=body, type=kind))

    async def asked(self, key: str, kind: str, body: bytes) -> FaultReply:
        """What is answered to a message that nobody should send."""
        question = Question(exchange=HOST, key=key, type=kind, body=body, headers={}, deadline_seconds=10)
        reply = await self.caller.ask(question)
        assert reply.type == "fault"
        return FaultReply.from_wire(reply.body)


@contextlib.asynccontextmanager
async def hosting(create: Callable[[], Any], timings: Timings = DEFAULT_TIMINGS) -> AsyncIterator[Hosting]:
    memory = MemoryBroker()
    buses = [memory.connect(), memory.connect()]
    caller = Caller(buses[1])
    await caller.start()
    host = Host(buses[0], "it", create, 1, timings=timings)
    await host.start()
    try:
        yield Hosting(host, buses[1], caller, timings)
    finally:
        await host.stop(0)
        await caller.close()
        for bus in buses:
            await bus.close()
        memory.close()


def body(script: Script) -> Callable[[], Any]:
    return lambda: BODY(script)


async def shows(target: Any, emit: Any, send: Any) -> None:
    emit(target.shows("seen"))


async def ran(hosted: Hosting, leased: RemoteLease) -> list[Any]:
    controller = Controller(OURS)
    await hosted.run(leased, controller)
    return [event.content for event in controller.seen]


async def test_garbage_among_lease_requests_is_answered_and_the_slot_goes_on() -> None:
    async with hosting(body(shows)) as hosted:
        assert (await hosted.asked("it", LEASE.key, b"\xff not json")).code == BadRequest.code
        other = await hosted.asked("it", LEASE.key, AskLease(controller_id="c", version=99).to_wire())
        assert "the controller 99" in other.error
        assert await ran(hosted, await hosted.lease()) == ["seen"]


async def test_garbage_on_a_lease_and_on_a_run_is_answered_or_thrown_away() -> None:
    async def script(target: Any, emit: Any, send: Any) -> None:
        emit(target.shows((await send(target.asks("hello"))).value))

    async with hosting(body(script)) as hosted:
        leased = await hosted.lease()
        assert (await hosted.asked(leased.key, SET_CONFIG.key, b"{")).code == BadRequest.code
        assert (await hosted.asked(leased.key, "dance", b"{}")).code == BadRequest.code
        await hosted.says(leased.key, RUN_HEARS, b"[]")
        await hosted.says(leased.key, SET_CONFIG.key, b"nobody to answer")

        async def answer(event: Any) -> Any:
            # In the middle of the run, and on its own queue too.
            await hosted.says(leased.key, RUN_HEARS, b"\x00")
            await hosted.bus.publish(RUN, ear.key, Envelope(body=b"{}", type="run_says"))
            return OURS.responses["ControllableInjection"](event=event, controllable=event.controllable, value="fine")

        ear = Ear(hosted.bus)
        controller = Controller(OURS, answer)
        await RemoteRun(Here(), leased, ear, Codec(OURS), controller.emit, controller.send).perform()
        await ear.close()
        assert controller.seen[-1].content == "fine"


class Leaves(BaseException):
    """What no handler of exceptions would catch."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit("enough"), "The target called exit('enough')"),
        (Leaves("through the window"), "The target raised Leaves: through the window"),
        (asyncio.CancelledError(), "The target cancelled what it was asked to do"),
        (KeyboardInterrupt(), "The target raised KeyboardInterrupt"),
    ],
    ids=["exit", "of its own", "cancelled", "interrupt"],
)
async def test_a_target_that_leaves_ends_nothing_but_what_it_was_asked(error: BaseException, words: str) -> None:
    async def script(target: Any, emit: Any, send: Any) -> None:
        raise error

    class Leaving(BODY):  # type: ignore[misc, valid-type]
        def query(self, name: str, **params: str) -> str:
            raise error

    async with hosting(lambda: Leaving(script)) as hosted:
        leased = await hosted.lease()
        with pytest.raises(RuntimeError) as asking:
            await leased.ask(QUERY, name="runs", params={})
        with pytest.raises(RuntimeError) as running:
            await ran(hosted, leased)
        assert words in str(asking.value)
        assert words in str(running.value)
        # The same instance on the same stage still answers.
        await leased.ask(SET_CONFIG, name="persona", value="calm")
        await leased.ask(TEARDOWN)
        assert (await hosted.lease()).lease_id != leased.lease_id


async def test_a_query_whose_answer_is_no_text_is_the_targets_mistake() -> None:
    class Numbers(BODY):  # type: ignore[misc, valid-type]
        def query(self, name: str, **params: str) -> Any:
            return 5

    async with hosting(lambda: Numbers(shows)) as hosted:
        with pytest.raises(TypeError, match="was answered with a int: a target's values are text"):
            await (await hosted.lease()).ask(QUERY, name="runs", params={})


async def test_a_factory_that_fails_now_and_then_costs_only_its_own_lease() -> None:
    made = iter([ArithmeticError("no key"), None])

    def create() -> Any:
        error = next(made)
        if error is not None:
            raise error
        return BODY(shows)

    async with hosting(create) as hosted:
        with pytest.raises(RemoteTargetError, match="ArithmeticError: no key"):
            await hosted.lease()
        assert await ran(hosted, await hosted.lease()) == ["seen"]


async def test_a_lease_that_was_never_used_ends_at_once_when_its_host_is_asked_to_stop() -> None:
    async with hosting(body(shows), QUICK) as hosted:
        leased = await hosted.lease()
        async with asyncio.timeout(5):
            await hosted.host.stop(60)
            with pytest.raises(HostLost, match="its host has ended it"):
                await leased.ask(SET_CONFIG, name="persona", value="late")
        await leased.give_up()


async def test_a_released_lease_is_ended_by_its_host_without_a_lapse() -> None:
    async with hosting(body(shows)) as hosted:
        await (await hosted.lease()).release()
        async with asyncio.timeout(5):
            assert await ran(hosted, await hosted.lease()) == ["seen"]


async def test_a_lease_says_why_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosting(body(shows)) as hosted:
        leased = await hosted.lease()
        await leased.give_up()
        with pytest.raises(HostLost, match="it was given up here"):
            await leased.ask(SET_CONFIG, name="persona", value="late")


async def test_whoever_emits_more_than_is_heard_waits_and_goes_on_when_it_is() -> None:
    memory = MemoryBroker()
    bus = memory.connect()
    await bus.declare(run_topology("r"))
    telling = Telling(bus, "r", "r")
    event = WireEvent(kind="Event", event_id="e", at=0, content="x")
    said = 0

    def flood() -> None:
        nonlocal said
        with contextlib.suppress(RuntimeError):
            while True:
                telling.say("emit", event=event)
                said += 1

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        async with asyncio.timeout(30):
            while said < MOST_UNHEARD:
                await asyncio.sleep(0.01)
        assert said == MOST_UNHEARD
        telling.hear(1000, again=False)
        async with asyncio.timeout(30):
            while said < MOST_UNHEARD + 1000:
                await asyncio.sleep(0.01)
        assert said == MOST_UNHEARD + 1000
    finally:
        await telling.close()
        await asyncio.to_thread(thread.join)
        await bus.close()
        memory.close()
    with pytest.raises(RuntimeError, match="closed trajectory"):
        telling.say("emit", event=event)


async def test_an_event_that_no_message_could_hold_is_refused_at_the_emit() -> None:
    async def script(target: Any, emit: Any, send: Any) -> None:
        with pytest.raises(ValueError, match="is the most"):
            emit(target.shows("x" * (MOST_EVENT_CHARACTERS + 1)))
        emit(target.shows("smaller"))

    async with hosting(body(script)) as hosted:
        assert await ran(hosted, await hosted.lease()) == ["smaller"]


async def test_a_stage_whose_target_blocks_is_left_behind_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintain_host.stage.CLOSE_SECONDS", 0.2)
    free, blocking = Stage("free"), Stage("blocked")
    began, let_go = threading.Event(), threading.Event()
    waiting = asyncio.create_task(blocking.do(lambda: began.set() or let_go.wait()))
    await asyncio.to_thread(began.wait)
    assert await free.do(lambda: 5) == 5
    assert await free.close()
    assert not await blocking.close()
    let_go.set()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    monkeypatch.setattr("quintain_host.stage.CLOSE_SECONDS", 5)
    assert await blocking.close()


async def test_a_slot_goes_on_after_a_target_that_never_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintain_host.stage.LEAVE_SECONDS", 0.3)
    monkeypatch.setattr("quintain_host.stage.CLOSE_SECONDS", 0.2)
    let_go = threading.Event()

    async def script(target: Any, emit: Any, send: Any) -> None:
        emit(target.shows("seen"))
        if target.persona == "stuck":
            let_go.wait()

    async with hosting(body(script), QUICK) as hosted:
        leased = await hosted.lease()
        await leased.ask(SET_CONFIG, name="persona", value="stuck")
        running = asyncio.create_task(ran(hosted, leased))
        await asyncio.sleep(0)
        await leased.give_up()
        with pytest.raises(HostLost):
            await running
        assert await ran(hosted, await hosted.lease()) == ["seen"]
        let_go.set()
