"""Who answers for a slot's process: it is asked whether the process runs, and tells its end to who asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.contracts.remote_target import (
    LEASE_OFFER_TYPE,
    LeaseOffered,
    LeaseOpened,
    ProcessStatus,
    TargetDescriptor,
)
from quintain.errors import ConfigError, HostLost
from quintain.remote.lease import ProcessWatch
from quintain.remote.lease_request import MAX_LOST_BOOTS, acquire_lease
from quintain.routes import DESCRIBE, WATCH_PROCESS
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.rpc.server import send_reply
from quintain.topology import HOST, REPLY, host_topology
from quintain_host.supervisor import MAX_WATCHERS, ProcessSupervisor, Supervision, slot_environment
from support.quick import QUICK
from support.waiting import wait_until

NOTHING = TargetDescriptor(target_class="T", tags=[], config_specs=[], query_specs=[], controllables=[], observables=[])


@dataclass
class Fleet:
    """A supervisor, and a driver's end of the same broker."""

    supervisor: ProcessSupervisor
    host_bus: Bus
    bus: Bus
    rpc_client: RpcClient
    offers: list[Supervision] = field(default_factory=list)

    def watch(self, process_id: str) -> ProcessWatch:
        offer = LeaseOffered(host_id="h", supervisor_key=self.supervisor.key, process_id=process_id)
        return ProcessWatch(self.rpc_client, offer, QUICK)

    async def serve_leases(self, on_offered: Callable[[Delivery, Supervision], object]) -> None:
        """Offer each lease that is asked for; what comes of it is the caller's."""
        topology = host_topology("it")
        await self.host_bus.declare(topology)

        async def on_request(request: Delivery) -> None:
            supervision = self.supervisor.add_process()
            self.offers.append(supervision)
            offer = LeaseOffered(
                host_id="h", supervisor_key=supervision.supervisor_key, process_id=supervision.process_id
            )
            envelope = Envelope(body=offer.to_wire(), type=LEASE_OFFER_TYPE, correlation_id=request.correlation_id)
            await self.host_bus.publish(REPLY, request.reply_to or "", envelope)
            await request.ack()
            result = on_offered(request, supervision)
            if asyncio.iscoroutine(result):
                await result

        await self.host_bus.consume(topology.queues[0], on_request, prefetch=1)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    broker = MemoryBroker()
    host_bus, bus = broker.connect(), broker.connect()
    rpc_client = RpcClient(bus)
    await rpc_client.start()
    supervisor = ProcessSupervisor(host_bus)
    await supervisor.open()
    yield Fleet(supervisor, host_bus, bus, rpc_client)
    await supervisor.close()
    await rpc_client.close()
    for each in (host_bus, bus):
        await each.close()
    broker.close()


async def test_the_end_of_a_process_is_told_to_who_watches_it_and_to_nobody_else(fleet: Fleet) -> None:
    doomed, other = fleet.supervisor.add_process(), fleet.supervisor.add_process()
    watches = [fleet.watch(doomed.process_id), fleet.watch(doomed.process_id), fleet.watch(other.process_id)]
    heard = [0, 0, 0]

    def listen(number: int) -> None:
        def on_heard() -> None:
            heard[number] += 1

        watches[number].listen(on_heard)

    for number in range(3):
        listen(number)
    await wait_until(lambda: all(heard))
    await fleet.supervisor.end_process(doomed.process_id, "ended with -9", "the last words")
    await wait_until(lambda: watches[0].end and watches[1].end)
    assert watches[0].end == ProcessStatus(ended="ended with -9", log_tail="the last words")
    # Who asks later is told too.
    late = fleet.watch(doomed.process_id)
    await wait_until(lambda: late.end)
    assert watches[2].end is None
    for watch in (*watches, late):
        watch.close()


async def test_a_process_that_the_supervisor_never_started_is_unknown_and_no_sign_of_life(fleet: Fleet) -> None:
    request = RpcRequest(
        exchange=HOST,
        key=fleet.supervisor.key,
        type=WATCH_PROCESS.key,
        body=WATCH_PROCESS.request_type(process_id="nobody").to_wire(),
        headers={},
        deadline_seconds=10,
    )
    assert not parse_reply(await fleet.rpc_client.call(request), ProcessStatus).is_known


async def test_a_supervisor_remembers_a_limited_number_of_watchers(fleet: Fleet) -> None:
    process_id = fleet.supervisor.add_process().process_id
    watches = [fleet.watch(process_id) for _ in range(3 * MAX_WATCHERS)]
    await wait_until(lambda: len(fleet.supervisor._watchers[process_id]) == MAX_WATCHERS)
    for watch in watches:
        watch.close()


async def test_a_supervisor_whose_queue_is_gone_is_noticed(fleet: Fleet) -> None:
    watch = fleet.watch(fleet.supervisor.add_process().process_id)
    assert watch.lost_seconds == QUICK.host_lost_seconds
    await fleet.supervisor.close()
    await wait_until(lambda: watch.lost_seconds == QUICK.host_gone_seconds)
    watch.close()


async def test_a_factory_that_ends_its_process_is_an_error_after_some_processes(fleet: Fleet) -> None:
    async def end(request: Delivery, supervision: Supervision) -> None:
        await fleet.supervisor.end_process(supervision.process_id, "ended with 3", "no licence")

    await fleet.serve_leases(end)
    with pytest.raises(HostLost, match="creating an instance of 'it' when its process ended with 3") as caught:
        await acquire_lease(fleet.bus, fleet.rpc_client, "it", timings=QUICK)
    assert "no licence" in caught.value.__notes__[0]
    assert len(fleet.offers) == MAX_LOST_BOOTS


async def test_a_lease_ends_with_its_process_and_says_why(fleet: Fleet) -> None:
    async def open_lease(request: Delivery, supervision: Supervision) -> None:
        opened = LeaseOpened(lease_id="l", key="lease/l", host_id="the host", descriptor=NOTHING)
        await send_reply(fleet.host_bus, request, opened)

    await fleet.serve_leases(open_lease)
    await fleet.bus.declare(host_topology("it"))
    lease = await acquire_lease(fleet.bus, fleet.rpc_client, "it", timings=QUICK)
    await fleet.supervisor.end_process(fleet.offers[0].process_id, "ended with -9 (SIGKILL)", "the last words")
    with pytest.raises(HostLost, match="on host the host is over"):
        await lease.call(DESCRIBE)
    assert lease.host_lost
    await lease.stop_renewing()


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
    }
    for name in ("QUINTAIN_ADMIN_TOKEN", "NOT_SET"):
        with pytest.raises(ConfigError):
            slot_environment(env, [name], {})
