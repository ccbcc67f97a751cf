"""The backend of a run: services in this process, or a fleet behind a broker or a gateway."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quintain.bus.connect import open_bus
from quintain.bus.memory import MemoryBroker
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client, verified_client
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.errors import ConfigError
from quintain.rpc.requests import RpcClient
from quintain.runtime.lazy_module import LazyModule
from quintain.settings import MEMORY_URL, Settings, without_password
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.services import FleetPlan, run_fleet
from quintain_runner.spec.graders import CommandGrader, FunctionGrader

if TYPE_CHECKING:
    from quintain.client import http_transport as http
    from quintain_gateway import server as gateway
    from quintain_gateway import settings as gateway_settings
else:
    http = LazyModule("quintain.client.http_transport")
    gateway = LazyModule("quintain_gateway.server")
    gateway_settings = LazyModule("quintain_gateway.settings")

#: How long a run waits for the broker when it starts, in seconds; as long as the other commands.
BROKER_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The connection of a run to its services.

    ``gateway_url`` is for the graders that are programs and call targets; None where there is no such grader.
    ``admin`` opens the run's session if there is an admin token; else the session is a child of that of
    ``parent_token``. ``connect_session`` opens the client of a session by its token, after a check that it is valid;
    ``client_of`` gives one for single calls.
    """

    #: Where the services run, to show to the user.
    location: str
    gateway_url: str | None
    admin: Admin | None
    parent_token: str | None
    connect_session: Callable[[str], AbstractAsyncContextManager[Client]]
    client_of: Callable[[str], Client]

    async def open_session(self, request: OpenSession, *, may_have_more: bool = True) -> SessionOpened:
        """Open a session: with the admin token, else as a child of the user's, with that one's limit at most.

        Raises `ConfigError` if there is neither, or if the limit is lower and ``may_have_more`` is False.
        """
        if self.admin is not None:
            return await self.admin.open(request)
        if self.parent_token is None:
            raise ConfigError(
                "A run or a probe on a fleet needs a session: set QUINTAIN_ADMIN_TOKEN to open one, or "
                "QUINTAIN_SESSION_TOKEN to use the budget of yours"
            )
        async with self.connect_session(self.parent_token) as parent:
            wanted = request.max_calls or 0
            limit = min(wanted, (await parent.get_info()).max_calls)
            if limit < wanted and not may_have_more:
                raise ConfigError(
                    f"The run's budget is {wanted} calls, the session of QUINTAIN_SESSION_TOKEN has {limit}: "
                    "set max_calls or --max-calls to at most that, or open a session with more"
                )
            return await parent.open_child(request.model_copy(update={"max_calls": limit}))


@contextlib.asynccontextmanager
async def connect_backend(
    run: RunSettings, *, ledger_url: str, exclusive_path: str | None = None
) -> AsyncIterator[Backend]:
    """Connect to the environment's broker or gateway or, without either, start all services with this ledger.

    ``exclusive_path`` is used by only one fleet at a time, see `FleetPlan`. Raises `ConfigError`, `BrokerUnavailable`,
    `BrokerRefused` or `GatewayUnavailable`.
    """
    settings, plan = run.settings, None
    if run.config is not None and not run.is_on_fleet:
        plan = FleetPlan(
            config=run.config,
            env=run.env,
            broker_url=MEMORY_URL,
            ledger_url=ledger_url,
            admin_token=settings.admin_token or secrets.token_urlsafe(32),
            has_gateway=_needs_gateway(run),
            exclusive_path=exclusive_path,
            timings=settings.timings,
        )
    elif settings.broker_url is None and settings.gateway_url is not None:
        async with _connect_http_backend(settings, settings.gateway_url) as backend:
            yield backend
        return
    async with _connect_bus_backend(run, plan) as backend:
        yield backend


def _needs_gateway(run: RunSettings) -> bool:
    """Whether a grader is a program that may call targets, for which it gets a URL."""
    programs = [one for one in run.evaluation.graders if isinstance(one, CommandGrader | FunctionGrader)]
    return any(one.name not in run.evaluation.graders_without_session for one in programs)


@contextlib.asynccontextmanager
async def _connect_bus_backend(run: RunSettings, plan: FleetPlan | None) -> AsyncIterator[Backend]:
    settings = run.settings
    async with contextlib.AsyncExitStack() as stack:
        memory: MemoryBroker | None = None
        url, admin_token = settings.broker_url or "", settings.admin_token
        gateway_url = None
        if plan is not None:
            embedded = await stack.enter_async_context(run_fleet(plan))
            memory, url, admin_token = embedded.memory, embedded.broker_url, embedded.admin_token
            gateway_url = embedded.gateway_url
        bus = await stack.enter_async_context(open_bus(url, "run", memory, timeout_seconds=BROKER_TIMEOUT_SECONDS))
        if gateway_url is None and _needs_gateway(run):
            address, limits = gateway_settings.BindAddress(), gateway_settings.GatewayLimits()
            gateway_url = await stack.enter_async_context(gateway.run_gateway(bus, address, limits))
        rpc_client = await stack.enter_async_context(RpcClient(bus))
        yield Backend(
            location=f"the fleet at {without_password(url)}" if plan is None else "in this process",
            gateway_url=gateway_url,
            admin=None if admin_token is None else Admin(AmqpTransport(rpc_client, admin_token)),
            parent_token=settings.session_token,
            connect_session=lambda token: verified_client(AmqpTransport(rpc_client, token)),
            client_of=lambda token: Client(AmqpTransport(rpc_client, token)),
        )


@contextlib.asynccontextmanager
async def _connect_http_backend(settings: Settings, url: str) -> AsyncIterator[Backend]:
    async with contextlib.AsyncExitStack() as stack:
        admin: Admin | None = None
        if settings.admin_token is not None:
            admin = Admin(await stack.enter_async_context(http.open_http_transport(url, settings.admin_token)))
        # One HTTP connection for the counters of all child sessions: there are thousands, each is read once.
        info_connection = await stack.enter_async_context(http.open_http_connection(url))

        @contextlib.asynccontextmanager
        async def connect_session(token: str) -> AsyncIterator[Client]:
            async with http.open_http_transport(url, token) as transport, verified_client(transport) as client:
                yield client

        yield Backend(
            location=f"the fleet behind {info_connection.address}",
            gateway_url=url.rstrip("/"),
            admin=admin,
            parent_token=settings.session_token,
            connect_session=connect_session,
            client_of=lambda token: Client(http.HttpTransport(info_connection, token)),
        )
