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
from quintain.client.client import ANSWER_SECONDS, Client
from quintain.client.connect import proven
from quintain.client.evaluator import Administrator, Evaluator
from quintain.client.http_client import connect_http, connect_http_admin
from quintain.client.http_line import line_to
from quintain.clock import Clock
from quintain.contracts.metadata import Info
from quintain.errors import BudgetUnavailable, NoAnswer
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
    admin: Administrator | None
    parent_token: str | None
    open: Callable[[str], AbstractAsyncContextManager[Evaluator]]
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
            admin=None if admin_token is None else Admin(caller, admin_token),
            parent_token=settings.session_token,
            open=lambda token: proven(caller, token),
            count_calls=lambda token: Client(caller, Clock(), token).get_info(),
        )


def _here(plan: FleetPlan) -> str:
    return "in this process, its ledger in one beside it" if plan.apart else "in this process"


@contextlib.asynccontextmanager
async def _over_http(settings: Settings, url: str) -> AsyncIterator[Standing]:
    async with contextlib.AsyncExitStack() as stack:
        admin: Administrator | None = None
        if settings.admin_token is not None:
            admin = await stack.enter_async_context(
                connect_http_admin(url, settings.admin_token, timeout_seconds=ANSWER_SECONDS)
            )
        counting = await stack.enter_async_context(line_to(url, ""))

        async def count_calls(token: str) -> Info:
            # One line for all children: there are thousands, and each is asked once.
            headers = {"Authorization": f"Bearer {token}"}
            try:
                return await counting.ask("GET", "/info", Info, timeout_seconds=ANSWER_SECONDS, headers=headers)
            except NoAnswer as silence:
                raise BudgetUnavailable(silence.message) from None

        yield Standing(
            place=f"the fleet behind {counting.place}",
            gateway_url=url.rstrip("/"),
            admin=admin,
            parent_token=settings.session_token,
            open=lambda token: connect_http(url, token),
            count_calls=count_calls,
        )
