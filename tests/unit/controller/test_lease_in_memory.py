"""`quintain.lease` over a broker in memory; `tests/integration/test_lease.py` has the rest of it."""

from __future__ import annotations

from typing import Any

import quintain
from quintain.bus.memory import MemoryBroker
from quintain.target import ControllableInjection, EventResponse, ObservableEvent
from quintain_host.host import Host
from support.target_placements import scripted_target_class

Bot: Any = scripted_target_class("ours")


async def converse(target: Any, emit: Any, send: Any) -> None:
    emit(target.observation_event((await send(target.request_event("hello"))).value))


async def inject(event: Any) -> EventResponse:
    return ControllableInjection(event=event, controllable=event.controllable, value="put in")


async def test_a_target_is_leased_in_memory() -> None:
    memory = MemoryBroker()
    bus = memory.connect()
    host = Host(bus, "bot", lambda: Bot(converse), 1)
    await host.start()
    try:
        async with quintain.lease("bot", scope=["user"], memory=memory) as target:
            *_, shown = (await target.run(on_event=inject)).snapshot()
            assert isinstance(shown, ObservableEvent)
            assert shown.content == "put in"
    finally:
        await host.stop(0)
        await bus.close()
        memory.close()
