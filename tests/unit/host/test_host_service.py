"""A host under what it should never meet: garbage, targets that leave, block, flood or cancel themselves; its end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from quintain.bus.base import Envelope
from quintain.contracts.remote_target import RUN_INPUT_TYPE, OpenLease
from quintain.errors import BadRequest, HostLost
from quintain.remote.connection_thread import InlineExecutor
from quintain.remote.run_channel import RunOutputQueue
from quintain.remote.run_driver import RunDriver
from quintain.routes import LEASE, QUERY, SET_CONFIG, TEARDOWN
from quintain.target.codec import Codec
from quintain.target.type_registry import QUINTAIN_TYPES
from quintain.topology import RUN
from support.memory_host import BODY, emit_seen, run_contents, run_host, target_factory
from support.quick import QUICK
from support.target_placements import Controller


async def test_garbage_among_lease_requests_is_answered_and_the_slot_goes_on() -> None:
    async with run_host(target_factory(emit_seen)) as hosted:
        assert (await hosted.fault_reply("it", LEASE.key, b"\xff not json")).code == BadRequest.code
        other = await hosted.fault_reply("it", LEASE.key, OpenLease(controller_id="c", version=99).to_wire())
        assert "the controller 99" in other.error
        assert await run_contents(hosted, await hosted.lease()) == ["seen"]


async def test_garbage_on_a_lease_and_on_a_run_is_answered_or_thrown_away() -> None:
    async def script(target: Any, emit: Any, send: Any) -> None:
        emit(target.observation_event((await send(target.request_event("hello"))).value))

    async with run_host(target_factory(script)) as hosted:
        leased = await hosted.lease()
        assert (await hosted.fault_reply(leased.key, SET_CONFIG.key, b"{")).code == BadRequest.code
        assert (await hosted.fault_reply(leased.key, "dance", b"{}")).code == BadRequest.code
        await hosted.publish(leased.key, RUN_INPUT_TYPE, b"[]")
        await hosted.publish(leased.key, SET_CONFIG.key, b"nobody to answer")

        async def answer(event: Any) -> Any:
            # In the middle of the run, and on its own queue too.
            await hosted.publish(leased.key, RUN_INPUT_TYPE, b"\x00")
            await hosted.bus.publish(RUN, ear.key, Envelope(body=b"{}", type="run_says"))
            return QUINTAIN_TYPES.responses["ControllableInjection"](
                event=event, controllable=event.controllable, value="fine"
            )

        ear = RunOutputQueue(hosted.bus)
        controller = Controller(QUINTAIN_TYPES, answer)
        await RunDriver(InlineExecutor(), leased, ear, Codec(QUINTAIN_TYPES), controller.emit, controller.send).run()
        await ear.close()
        assert controller.seen[-1].content == "fine"


class ExitException(BaseException):
    """What no handler of exceptions would catch."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit("enough"), "The target called exit('enough')"),
        (ExitException("through the window"), "The target raised ExitException: through the window"),
        (asyncio.CancelledError(), "The target cancelled its own task"),
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

    async with run_host(lambda: Leaving(script)) as hosted:
        leased = await hosted.lease()
        with pytest.raises(RuntimeError) as asking:
            await leased.call(QUERY, name="runs", params={})
        with pytest.raises(RuntimeError) as running:
            await run_contents(hosted, leased)
        assert words in str(asking.value)
        assert words in str(running.value)
        # The same instance on the same stage still answers.
        await leased.call(SET_CONFIG, values={"persona": "calm"})
        await leased.call(TEARDOWN)
        assert (await hosted.lease()).lease_id != leased.lease_id


async def test_a_lease_that_was_never_used_ends_at_once_when_its_host_is_asked_to_stop() -> None:
    async with run_host(target_factory(emit_seen), QUICK) as hosted:
        leased = await hosted.lease()
        async with asyncio.timeout(5):
            await hosted.host.stop(60)
            with pytest.raises(HostLost, match="its host has ended it"):
                await leased.call(SET_CONFIG, values={"persona": "late"})
        await leased.stop_renewing()


async def test_a_released_lease_is_ended_by_its_host_without_a_lapse() -> None:
    async with run_host(target_factory(emit_seen)) as hosted:
        await (await hosted.lease()).release()
        async with asyncio.timeout(5):
            assert await run_contents(hosted, await hosted.lease()) == ["seen"]


async def test_a_lease_says_why_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_host(target_factory(emit_seen)) as hosted:
        leased = await hosted.lease()
        await leased.stop_renewing()
        with pytest.raises(HostLost, match="it was released here"):
            await leased.call(SET_CONFIG, values={"persona": "late"})


async def test_a_slot_goes_on_after_a_target_that_never_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintain_host.instances.CANCEL_WAIT_SECONDS", 0.3)
    monkeypatch.setattr("quintain_host.instances.JOIN_SECONDS", 0.2)
    let_go = threading.Event()

    async def script(target: Any, emit: Any, send: Any) -> None:
        emit(target.observation_event("seen"))
        if target.persona == "stuck":
            let_go.wait()

    async with run_host(target_factory(script), QUICK) as hosted:
        leased = await hosted.lease()
        await leased.call(SET_CONFIG, values={"persona": "stuck"})
        running = asyncio.create_task(run_contents(hosted, leased))
        await asyncio.sleep(0)
        await leased.stop_renewing()
        with pytest.raises(HostLost):
            await running
        assert await run_contents(hosted, await hosted.lease()) == ["seen"]
        let_go.set()
