"""A process for each slot: started, started again, ended; its parent answers for it, and tells how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.contracts.hosting import LEASE_TYPE, DescribeTarget, HostItem, HostMessage, LeaseOffered, LeaseResult
from quintain.contracts.remote_target import TargetDescriptor
from quintain.errors import ConfigError, HostLost
from quintain.programs.program import SECRET_NAMES_VARIABLE
from quintain.remote.lease import MAX_LOST_BOOTS, RemoteLease, TargetTimeouts, acquire_lease
from quintain.rpc.requests import RpcClient
from quintain.settings import environment
from quintain.topology import REPLY, host_topology, lease_topology
from quintain_host.supervisor import SlotProcesses, slot_environment
from support.quick import QUICK
from support.waiting import wait_until

# A slot's process and its driver: the parent answers for the process, and tells how it ended.


NOTHING = TargetDescriptor(target_class="T", tags=[], config_specs=[], query_specs=[], controllables=[], observables=[])

#: A slot's process that has taken the lease that its environment names, and does nothing for it.
SILENT = """
import json, os, sys, time
os.write(int(sys.argv[2]), b"ready\\nlease\\n" + json.dumps([os.environ["LEASE"], os.environ["KEY"]]).encode() + b"\\n")
print("the last words", file=sys.stderr, flush=True)
time.sleep(float(os.environ["SECONDS"]))
sys.exit(3)
"""


@dataclass
class Fleet:
    """The end of a host and of a driver of the same broker; the host only offers leases, in a process that ends."""

    host_bus: Bus
    bus: Bus
    rpc_client: RpcClient
    seconds: float = 0.0
    processes: list[SlotProcesses] = field(default_factory=list)
    result: LeaseResult | None = None

    async def serve(self) -> None:
        topology = host_topology("it")
        await self.host_bus.declare(lease_topology("x"))
        await self.host_bus.declare(topology)
        await self.host_bus.consume(topology.queues[0], self._on_request, prefetch=1)

    async def lease(self) -> RemoteLease:
        timeouts = TargetTimeouts(slot_seconds=10, boot_seconds=20)
        return await acquire_lease(self.bus, self.rpc_client, "it", timeouts=timeouts, timings=QUICK)

    async def say(self, request: Delivery, number: int, item: HostItem) -> None:
        envelope = Envelope(
            body=HostMessage(number=number, processed=1, items=[item]).to_wire(),
            type=LEASE_TYPE,
            correlation_id=request.correlation_id,
            reply_to="lease/x",
        )
        await self.host_bus.publish(REPLY, request.reply_to or "", envelope)

    async def _on_request(self, request: Delivery) -> None:
        await request.ack()
        await self.say(request, 1, LeaseOffered(host_id="h"))
        lease = {"LEASE": request.correlation_id or "", "KEY": request.reply_to or "", "SECONDS": str(self.seconds)}
        command = [sys.executable, "-c", SILENT]
        processes = SlotProcesses(self.host_bus, command, 1, {**environment(), **lease}, QUICK)
        self.processes.append(processes)
        processes.start()
        await processes.wait_ready()
        if self.result is not None:
            await self.say(request, 2, self.result)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    broker = MemoryBroker()
    host_bus, bus = broker.connect(), broker.connect()
    rpc_client = RpcClient(bus)
    await rpc_client.start()
    fleet = Fleet(host_bus, bus, rpc_client)
    await fleet.serve()
    yield fleet
    await asyncio.gather(*(processes.stop(0) for processes in fleet.processes))
    await rpc_client.close()
    for each in (host_bus, bus):
        await each.close()
    broker.close()


async def test_a_factory_that_ends_its_process_is_an_error_after_some_processes(fleet: Fleet) -> None:
    with pytest.raises(HostLost, match="creating an instance of 'it': its process ended with 3") as caught:
        await fleet.lease()
    assert "the last words" in caught.value.__notes__[0]
    assert len(fleet.processes) == MAX_LOST_BOOTS


async def test_a_process_that_says_nothing_is_not_lost_while_it_runs_and_its_end_is_told(fleet: Fleet) -> None:
    fleet.seconds, fleet.result = 2 * QUICK.host_lost_seconds, LeaseResult(to=1, descriptor=NOTHING)
    lease = await fleet.lease()
    await asyncio.sleep(QUICK.host_lost_seconds * 1.5)
    assert not lease.ended
    await wait_until(lambda: lease.ended)
    with pytest.raises(HostLost, match="on host h is over: its process ended with 3") as caught:
        await lease.call(DescribeTarget())
    assert "the last words" in caught.value.__notes__[0]
    assert lease.host_lost
    await lease.close()


async def test_the_driver_of_a_process_that_is_stopped_is_told_so(fleet: Fleet) -> None:
    fleet.seconds, fleet.result = 3600, LeaseResult(to=1, descriptor=NOTHING)
    lease = await fleet.lease()
    (child,) = fleet.processes[0]._processes
    os.kill(child.pid, signal.SIGSTOP)
    await wait_until(lambda: lease.ended)
    with pytest.raises(HostLost, match="its process was stopped, and ended with -9"):
        await lease.call(DescribeTarget())
    await lease.close()


def test_a_slots_process_gets_what_it_needs_and_what_is_listed() -> None:
    env = {
        "PATH": "/bin",
        "QUINTAIN_BROKER_URL": "amqp://b",
        "QUINTAIN_ADMIN_TOKEN": "secret",
        "QUINTAIN_LEDGER_URL": "secret",
        "OTEL_SERVICE_NAME": "bots",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "BOT_KEY": "listed",
    }
    given = slot_environment(env, ["BOT_KEY"], {"MODE": "test"})
    assert given == {
        "PATH": "/bin",
        "QUINTAIN_BROKER_URL": "amqp://b",
        "OTEL_SERVICE_NAME": "bots",
        "BOT_KEY": "listed",
        "MODE": "test",
        SECRET_NAMES_VARIABLE: "BOT_KEY",
    }
    for name in ("QUINTAIN_ADMIN_TOKEN", "NOT_SET"):
        with pytest.raises(ConfigError):
            slot_environment(env, [name], {})


# A process for each slot: started, started again, and ended.


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
