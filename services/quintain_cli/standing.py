"""What a run stands on: services in this process, or a fleet, behind a broker or a gateway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from quintain.bus.broker_url import shown
from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.client.connect import proven
from quintain.client.http_transport import HttpTransport, http_connection, http_transport
from quintain.contracts.metadata import Info
from quintain.settings import Settings
from quintain_cli import compose
from quintain_cli.up import FleetPlan, fleet
from quintain_gateway import Address, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The fleet as a run meets it. ``admin`` opens its session, where there is one; else ``parent_token`` a child.

    ``open`` gives the client of a session by its token, and ``count_calls`` that session's counters.
    """

    #: Where it is, for people.
    place: str
    gateway_url: str
    admin: Admin | None
    parent_token: str | None
    open: Callable[[str], AbstractAsyncContextManager[Client]]
    count_calls: Callable[[str], Awaitable[Info]]


@contextlib.asynccontextmanager
async def standing(settings: Settings, plan: FleetPlan | None) -> AsyncIterator[Standing]:
    """The embedded services of the plan, or, without one, the fleet of the environment: a broker's, else a gateway's.

    Raises `ConfigError`, `BrokerUnavailable`, `BrokerRefused`, `GatewayUnavailable`.
    """
    if plan is None and settings.broker_url is None and settings.gateway_url is not None:
        async with _over_http(settings, settings.gateway_url) as ground:
            yield ground
    else:
        async with _over_a_bus(settings, plan) as ground:
            yield ground


@contextlib.asynccontextmanager
async def _over_a_bus(settings: Settings, plan: FleetPlan | None) -> AsyncIterator[Standing]:
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
            gateway_url = await stack.enter_async_context(compose.gateway(bus, Address(), Limits()))
        caller = Caller(bus)
        await caller.start()
        stack.push_async_callback(caller.close)
        yield Standing(
            place=f"the fleet at {shown(url)}" if plan is None else _here(plan),
            gateway_url=gateway_url,
            admin=None if admin_token is None else Admin(AmqpTransport(caller, admin_token)),
            parent_token=settings.session_token,
            open=lambda token: proven(AmqpTransport(caller, token)),
            count_calls=lambda token: Client(AmqpTransport(caller, token)).get_info(),
        )


def _here(plan: FleetPlan) -> str:
    return "in this process, its ledger in one beside it" if plan.apart else "in this process"


@contextlib.asynccontextmanager
async def _over_http(settings: Settings, url: str) -> AsyncIterator[Standing]:
    async with contextlib.AsyncExitStack() as stack:
        admin: Admin | None = None
        if settings.admin_token is not None:
            admin = Admin(await stack.enter_async_context(http_transport(url, settings.admin_token)))
        # One connection for all children: there are thousands, and each is asked once.
        counting = await stack.enter_async_context(http_connection(url))

        @contextlib.asynccontextmanager
        async def opened(token: str) -> AsyncIterator[Client]:
            async with http_transport(url, token) as transport, proven(transport) as client:
                yield client

        yield Standing(
            place=f"the fleet behind {counting.place}",
            gateway_url=url.rstrip("/"),
            admin=admin,
            parent_token=settings.session_token,
            open=opened,
            count_calls=lambda token: Client(HttpTransport(counting, token)).get_info(),
        )
