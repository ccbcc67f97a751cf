"""A slot's process and its driver: the parent answers for the process, and tells how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.contracts.hosting import (
    LEASE_TYPE,
    DescribeTarget,
    HostItem,
    HostMessage,
    LeaseOffered,
    LeaseResult,
)
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

NOTHING = TargetDescriptor(target_class="T", tags=[], config_specs=[], query_specs=[], controllables=[], observables=[])

#: A slot's process that has taken the lease that its environment names, and does nothing for it.
BUSY = """
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
        command = [sys.executable, "-c", BUSY]
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
