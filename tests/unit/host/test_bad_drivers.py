"""A host under drivers that misuse it, and targets that leave things open: bounded, and free again."""

from __future__ import annotations

import asyncio
from typing import Any

from quintain.remote.stream import MAX_UNPROCESSED_ITEMS
from quintain.target.type_registry import QUINTAIN_TYPES
from support.memory_host import emit_seen, run_host, target_factory
from support.quick import QUICK
from support.target_placements import Controller
from support.waiting import wait_until


async def test_a_driver_that_reads_nothing_fills_no_memory_and_its_slot_is_free_once_it_is_gone() -> None:
    emitted = 0

    async def flood(target: Any, emit: Any, send: Any) -> None:
        nonlocal emitted
        while True:
            emit(target.observation_event("x"))
            emitted += 1

    async with run_host(target_factory(flood), QUICK) as hosted:
        lease = await hosted.lease()
        lease.start_run(["ObservableEvent"], lambda items: None)
        await wait_until(lambda: emitted >= MAX_UNPROCESSED_ITEMS)
        await asyncio.sleep(0.1)
        assert emitted == MAX_UNPROCESSED_ITEMS
        await lease.close()
        again = await hosted.lease()
        await again.release()


async def test_a_target_that_ends_with_branches_open_ends_its_run_and_runs_again() -> None:
    open_branches: list[asyncio.Task[Any]] = []

    async def leave_open(target: Any, emit: Any, send: Any) -> None:
        open_branches.append(asyncio.create_task(send(target.request_event("nobody waits for this"))))
        await asyncio.sleep(0)
        await emit_seen(target, emit, send)

    async with run_host(target_factory(leave_open)) as hosted:
        lease = await hosted.lease()
        async with asyncio.timeout(20):
            for _ in range(2):
                controller = Controller(QUINTAIN_TYPES)
                await hosted.run(lease, controller)
                assert controller.contents()[-1] == "seen"
            await lease.release()
            controller = Controller(QUINTAIN_TYPES)
            await hosted.run(await hosted.lease(), controller)
    assert len(open_branches) == 3
