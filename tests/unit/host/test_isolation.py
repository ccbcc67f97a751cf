"""A process for each slot: started, started again, and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from quintain.settings import environment
from quintain_host import isolation
from quintain_host.isolation import Children

#: A child that says it is ready, and then waits; it ends on SIGTERM.
PATIENT = """
import os, signal, sys
os.write(int(sys.argv[2]), b"r")
signal.pause()
"""

#: Is ready, and holds a lease whose run has ended.
LEASED = """
import os, signal, sys
os.write(int(sys.argv[2]), b"rle")
signal.pause()
"""

STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(sys.argv[2]), b"r")
while True:
    signal.pause()
"""


def children(script: str, count: int) -> Children:
    return Children([sys.executable, "-c", script], count, environment())


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Children]:
    monkeypatch.setattr(isolation, "FIRST_PAUSE_SECONDS", 0.05)
    pair = children(PATIENT, 2)
    pair.start()
    async with asyncio.timeout(30):
        await pair.ready()
    yield pair
    await pair.stop(10)


async def until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not reached():
            await asyncio.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_child_that_dies_is_started_again_and_the_other_is_left_alone(pair: Children) -> None:
    doomed, other = pair.pids
    os.kill(doomed, signal.SIGKILL)
    await until(lambda: doomed not in pair.pids and len(pair.pids) == 2)
    assert other in pair.pids


async def test_what_they_count_outlives_them_but_for_what_they_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "FIRST_PAUSE_SECONDS", 0.05)
    pair = children(LEASED, 2)
    pair.start()
    tally = pair.tally
    await until(lambda: tally.runs["ended"] == 2)
    assert (tally.leases, tally.held) == (2, 2)
    os.kill(pair.pids[0], signal.SIGKILL)
    await until(lambda: tally.runs["ended"] == 3)
    assert (tally.leases, tally.held) == (3, 2)
    await pair.stop(10)
    assert (tally.leases, tally.held) == (3, 0)


async def test_all_are_ended_and_none_is_started_again(pair: Children) -> None:
    pids = pair.pids
    await pair.stop(10)
    assert not any(lives(pid) for pid in pids)
    await asyncio.sleep(0.2)
    assert not any(lives(pid) for pid in pair.pids)


async def test_one_that_outlives_its_grace_is_killed() -> None:
    one = children(STUBBORN, 1)
    one.start()
    async with asyncio.timeout(30):
        await one.ready()
    [pid] = one.pids
    await one.stop(0.2)
    assert not lives(pid)
