"""The end of a host and of its leases, targets that leave things open, and what counts as left behind by a lease."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quintain.contracts.hosting import SetConfig
from quintain.errors import HostLost
from quintain.programs.processes import ProcessMark
from quintain.target.type_registry import QUINTAIN_TYPES
from quintain_host.host import Leftovers
from support.memory_host import emit_seen, run_host, target_factory
from support.quick import QUICK
from support.target_placements import Controller


async def test_a_lease_that_was_never_used_ends_at_once_when_its_host_is_asked_to_stop() -> None:
    async with run_host(target_factory(emit_seen), QUICK) as hosted:
        leased = await hosted.lease()
        async with asyncio.timeout(5):
            await hosted.host.stop(60)
            with pytest.raises(HostLost, match="its host has ended it"):
                await leased.call(SetConfig(values={"persona": "late"}))
        await leased.close()


async def test_a_lease_says_why_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_host(target_factory(emit_seen)) as hosted:
        leased = await hosted.lease()
        await leased.close()
        with pytest.raises(HostLost, match="it was released here"):
            await leased.call(SetConfig(values={"persona": "late"}))


# A host under drivers that misuse it, and targets that leave things open: bounded, and free again.


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


# What counts as left behind by a lease in the process of its slot.


async def test_threads_of_the_event_loops_pool_are_no_leftovers() -> None:
    leftovers = Leftovers(ProcessMark({}).variables)
    await asyncio.gather(*(asyncio.to_thread(lambda: None) for _ in range(3)))
    assert not await leftovers.end()
