"""What counts as left behind by a lease in the process of its slot."""

from __future__ import annotations

import asyncio
import threading

from quintain.programs.processes import ProcessMark
from quintain_host.host import Leftovers


async def test_threads_of_the_event_loops_pool_are_no_leftovers() -> None:
    leftovers = Leftovers(ProcessMark({}).variables)
    await asyncio.gather(*(asyncio.to_thread(lambda: None) for _ in range(3)))
    assert not await leftovers.end()


async def test_a_thread_of_the_target_is_one() -> None:
    leftovers, ends = Leftovers(ProcessMark({}).variables), threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        assert await leftovers.end()
    finally:
        ends.set()
        thread.join()
    assert not await leftovers.end()
