"""A host under what it should never meet: garbage, targets that leave, block, flood or cancel themselves; its end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from quintain.contracts.hosting import LEASE_TYPE, DriverMessage, OpenLease, QueryTarget, SetConfig, Teardown
from quintain.errors import BadRequest, HostLost
from quintain.target.type_registry import QUINTAIN_TYPES
from support.memory_host import BODY, emit_seen, run_contents, run_host, target_factory
from support.quick import QUICK
from support.target_placements import Controller


async def test_garbage_among_lease_requests_is_answered_and_the_slot_goes_on() -> None:
    async with run_host(target_factory(emit_seen)) as hosted:
        assert (await hosted.fault_reply("it", LEASE_TYPE, b"\xff not json")).code == BadRequest.code
        other_version = DriverMessage(number=1, processed=0, items=[OpenLease(version=99)])
        other = await hosted.fault_reply("it", LEASE_TYPE, other_version.to_wire())
        assert (await hosted.fault_reply("it", "dance", b"{}")).code == BadRequest.code
        assert "the controller 99" in other.error
        assert await run_contents(hosted, await hosted.lease()) == ["seen"]


async def test_what_comes_to_a_lease_without_its_id_is_thrown_away() -> None:
    async def script(target: Any, emit: Any, send: Any) -> None:
        emit(target.observation_event((await send(target.request_event("hello"))).value))

    async with run_host(target_factory(script)) as hosted:
        leased = await hosted.lease()
        stranger = DriverMessage(number=2, processed=0, items=[SetConfig(values={"persona": "changed"})]).to_wire()
        for body in (b"\x00", b"[]", stranger):
            await hosted.publish(leased.stream.key, LEASE_TYPE, body)

        async def answer(event: Any) -> Any:
            # In the middle of the run, too.
            await hosted.publish(leased.stream.key, LEASE_TYPE, b"\x00")
            return QUINTAIN_TYPES.responses["ControllableInjection"](
                event=event, controllable=event.controllable, value="fine"
            )

        controller = Controller(QUINTAIN_TYPES, answer)
        await hosted.run(leased, controller)
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
            await leased.call(QueryTarget(name="runs"))
        with pytest.raises(RuntimeError) as running:
            await run_contents(hosted, leased)
        assert words in str(asking.value)
        assert words in str(running.value)
        # The same instance on the same stage still answers.
        await leased.call(SetConfig(values={"persona": "calm"}))
        await leased.call(Teardown())
        assert (await hosted.lease()).lease_id != leased.lease_id


async def test_a_lease_that_was_never_used_ends_at_once_when_its_host_is_asked_to_stop() -> None:
    async with run_host(target_factory(emit_seen), QUICK) as hosted:
        leased = await hosted.lease()
        async with asyncio.timeout(5):
            await hosted.host.stop(60)
            with pytest.raises(HostLost, match="its host has ended it"):
                await leased.call(SetConfig(values={"persona": "late"}))
        await leased.close()


async def test_a_released_lease_is_ended_by_its_host_without_a_lapse() -> None:
    async with run_host(target_factory(emit_seen)) as hosted:
        await (await hosted.lease()).release()
        async with asyncio.timeout(5):
            assert await run_contents(hosted, await hosted.lease()) == ["seen"]


async def test_a_lease_says_why_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_host(target_factory(emit_seen)) as hosted:
        leased = await hosted.lease()
        await leased.close()
        with pytest.raises(HostLost, match="it was released here"):
            await leased.call(SetConfig(values={"persona": "late"}))


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
        await leased.call(SetConfig(values={"persona": "stuck"}))
        running = asyncio.create_task(run_contents(hosted, leased))
        await asyncio.sleep(0)
        await leased.close()
        with pytest.raises(HostLost):
            await running
        assert await run_contents(hosted, await hosted.lease()) == ["seen"]
        let_go.set()
