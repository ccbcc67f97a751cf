"""What a run stands on: services in this process, or the fleet behind a broker; either way a loopback door."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller
from quintain.client.client import Client
from quintain.clock import Clock
from quintain.contracts.metadata import Info
from quintain.settings import Settings
from quintain_cli import compose
from quintain_cli.up import FleetPlan, fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The fleet as a run meets it. ``admin_token`` opens its session, or ``parent_token`` a child of it."""

    caller: Caller
    gateway_url: str
    admin_token: str | None
    parent_token: str | None

    async def count_calls(self, token: str) -> Info:
        """The counters of a session, by its own token."""
        return await Client(self.caller, Clock(), token).get_info()


@contextlib.asynccontextmanager
async def standing(settings: Settings, plan: FleetPlan | None) -> AsyncIterator[Standing]:
    """The embedded services of the plan, or, without one, the fleet of the environment.

    Raises `ConfigError`, `BrokerUnavailable`, `BrokerRefused`.
    """
    async with contextlib.AsyncExitStack() as stack:
        memory: MemoryBroker | None = None
        url, admin_token = settings.broker_url or "", settings.admin_token
        gateway_url = None
        if plan is not None:
            embedded = await stack.enter_async_context(fleet(plan))
            memory, url, admin_token = embedded.memory, embedded.broker_url, embedded.admin_token
            gateway_url = embedded.gateway_url
        bus = await stack.enter_async_context(compose.connected(url, "run", memory))
        if gateway_url is None:
            gateway_url = await stack.enter_async_context(compose.gateway(bus))
        caller = Caller(bus, user="run")
        await caller.start()
        stack.push_async_callback(caller.close)
        yield Standing(
            caller=caller, gateway_url=gateway_url, admin_token=admin_token, parent_token=settings.session_token
        )
