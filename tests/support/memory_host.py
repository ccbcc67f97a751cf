"""A host over a broker in memory, and a controller's end of the same broker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from quintain.bus.base import Bus
from quintain.bus.memory import MemoryBroker
from quintain.remote.connection_thread import InlineExecutor
from quintain.remote.lease import RemoteLease, TargetTimeouts, acquire_lease
from quintain.remote.run_driver import RunDriver
from quintain.rpc.requests import RpcClient
from quintain.target.codec import Codec
from quintain.target.type_registry import QUINTAIN_TYPES
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_host.host import Host
from support.target_placements import Controller, TargetScript, scripted_target_class

BODY = scripted_target_class("ours")


@dataclass
class HostUnderTest:
    """One host of one slot, and a controller's end of the same bus."""

    host: Host
    bus: Bus
    rpc_client: RpcClient
    timings: Timings

    async def lease(self, timeout_seconds: float = 10) -> RemoteLease:
        return await acquire_lease(
            self.bus,
            self.rpc_client,
            "it",
            timeouts=TargetTimeouts(slot_seconds=timeout_seconds),
            timings=self.timings,
        )

    async def run(self, leased: RemoteLease, controller: Controller) -> None:
        await RunDriver(InlineExecutor(), leased, Codec(QUINTAIN_TYPES), controller.emit, controller.send).run()


@contextlib.asynccontextmanager
async def run_host(create: Callable[[], Any], timings: Timings = DEFAULT_TIMINGS) -> AsyncIterator[HostUnderTest]:
    memory = MemoryBroker()
    buses = [memory.connect(), memory.connect()]
    caller = RpcClient(buses[1])
    await caller.start()
    host = Host(buses[0], "it", create, 1, timings=timings)
    await host.start()
    try:
        yield HostUnderTest(host, buses[1], caller, timings)
    finally:
        await host.stop(0)
        await caller.close()
        for bus in buses:
            await bus.close()
        memory.close()


def target_factory(script: TargetScript) -> Callable[[], Any]:
    return lambda: BODY(script)


async def emit_seen(target: Any, emit: Any, send: Any) -> None:
    emit(target.observation_event("seen"))
