"""A process for each slot: started, started again, and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain.bus.memory import MemoryBroker
from quintain.settings import environment
from quintain_host.supervisor import SlotProcesses
from support.quick import QUICK
from support.waiting import wait_until

#: A child that says it is ready, and then waits; it ends on SIGTERM.
PATIENT = """
import os, signal, sys
os.write(int(sys.argv[2]), b"ready\\n")
signal.pause()
"""

#: Is ready, and holds its interpreter's lock.
BUSY = """
import os, re, sys
os.write(int(sys.argv[2]), b"ready\\n")
re.match("(a+)+b", "a" * 64)
"""

#: Is ready, and holds a lease whose run has ended.
LEASED = """
import os, signal, sys
os.write(int(sys.argv[2]), b"ready\\nlease\\nended\\n")
signal.pause()
"""

STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(sys.argv[2]), b"ready\\n")
while True:
    signal.pause()
"""

#: Starts a process that leaves its session and its parent, and says which.
DETACHING = """
import os, signal, subprocess, sys
subprocess.run(["setsid", "--fork", "sh", "-c", "echo $$ > $DETACHED; exec sleep 1000"], check=True)
os.write(int(sys.argv[2]), b"ready\\n")
signal.pause()
"""

#: Asks to be replaced once it is ready.
REPLACED = """
import os, sys
os.write(int(sys.argv[2]), b"ready\\nlease\\n")
os._exit(70)
"""


def slot_processes(script: str, count: int) -> SlotProcesses:
    bus = MemoryBroker().connect()
    return SlotProcesses(bus, [sys.executable, "-c", script], count, environment(), QUICK)


def pids_of(processes: SlotProcesses) -> list[int]:
    """The processes that run now."""
    return sorted(child.pid for child in processes._processes)


@pytest.fixture
async def two_processes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlotProcesses]:
    monkeypatch.setattr("quintain_host.supervisor.INITIAL_BACKOFF_SECONDS", 0.05)
    pair = slot_processes(PATIENT, 2)
    pair.start()
    async with asyncio.timeout(30):
        await pair.wait_ready()
    yield pair
    await pair.stop(10)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_child_that_dies_is_started_again_and_the_other_is_left_alone(two_processes: SlotProcesses) -> None:
    doomed, other = pids_of(two_processes)
    os.kill(doomed, signal.SIGKILL)
    await wait_until(lambda: doomed not in pids_of(two_processes) and len(pids_of(two_processes)) == 2)
    assert other in pids_of(two_processes)


async def test_a_child_that_is_stopped_is_killed_and_replaced_and_one_that_is_busy_is_not(
    two_processes: SlotProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain_host.supervisor.INITIAL_BACKOFF_SECONDS", 0.05)
    busy = slot_processes(BUSY, 1)
    busy.start()
    await busy.wait_ready()
    stopped, other = pids_of(two_processes)
    holding = pids_of(busy)
    os.kill(stopped, signal.SIGSTOP)
    await wait_until(lambda: stopped not in pids_of(two_processes) and len(pids_of(two_processes)) == 2)
    assert other in pids_of(two_processes)
    assert pids_of(busy) == holding
    await busy.stop(0)


async def test_what_they_count_outlives_them_but_for_what_they_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintain_host.supervisor.INITIAL_BACKOFF_SECONDS", 0.05)
    pair = slot_processes(LEASED, 2)
    pair.start()
    tally = pair.counters
    await wait_until(lambda: tally.runs["ended"] == 2)
    assert (tally.leases, tally.active_leases) == (2, 2)
    os.kill(pids_of(pair)[0], signal.SIGKILL)
    await wait_until(lambda: tally.runs["ended"] == 3)
    assert (tally.leases, tally.active_leases) == (3, 2)
    await pair.stop(10)
    assert (tally.leases, tally.active_leases) == (3, 0)


async def test_a_child_that_wants_to_be_replaced_is_replaced_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintain_host.supervisor.INITIAL_BACKOFF_SECONDS", 3600)
    one = slot_processes(REPLACED, 1)
    one.start()
    await wait_until(lambda: one.counters.leases >= 3)
    await one.stop(10)


async def test_no_process_that_a_child_started_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETACHED", str(tmp_path / "pid"))
    one = slot_processes(DETACHING, 1)
    one.start()
    await wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    detached = int((tmp_path / "pid").read_text())
    assert is_alive(detached)
    os.kill(pids_of(one)[0], signal.SIGKILL)
    await wait_until(lambda: not is_alive(detached))
    await one.stop(10)


async def test_all_are_ended_and_none_is_started_again(two_processes: SlotProcesses) -> None:
    pids = pids_of(two_processes)
    await two_processes.stop(10)
    assert not any(is_alive(pid) for pid in pids)
    await asyncio.sleep(0.2)
    assert not any(is_alive(pid) for pid in pids_of(two_processes))


async def test_one_that_outlives_its_grace_is_killed() -> None:
    one = slot_processes(STUBBORN, 1)
    one.start()
    async with asyncio.timeout(30):
        await one.wait_ready()
    [pid] = pids_of(one)
    await one.stop(0.2)
    assert not is_alive(pid)
