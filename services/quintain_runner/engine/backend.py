"""The backend of a run: services in this process, or a fleet behind a broker or a gateway.

Also finds the configuration and the targets of an evaluation.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import quintain_gateway
from quintain.bus.broker_url import without_password
from quintain.bus.memory import MemoryBroker
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client, verified_client
from quintain.client.http_transport import HttpTransport, open_http_connection, open_http_transport
from quintain.config import Config
from quintain.contracts.session import Info
from quintain.rpc.requests import RpcClient
from quintain.settings import MEMORY_URL, Settings, environment
from quintain_gateway import BindAddress, GatewayLimits
from quintain_runner import services
from quintain_runner.plan.trials import choose_targets
from quintain_runner.services import FleetPlan, find_configuration, load_configuration, run_fleet
from quintain_runner.spec.evaluation import Evaluation

#: How long a run waits for the broker when it starts, in seconds; as long as the other commands.
BROKER_TIMEOUT_SECONDS = 10.0


def is_on_fleet(settings: Settings) -> bool:
    """Whether the environment names a fleet, by the URL of a broker or of a gateway."""
    if settings.broker_url is None:
        return settings.gateway_url is not None
    return not settings.broker_url.startswith(MEMORY_URL)


def load_evaluation_config(
    settings: Settings, config_path: Path | None, evaluation_folder: Path, *, on_fleet: bool
) -> Config | None:
    """Load the configuration for an evaluation in ``evaluation_folder``.

    On a fleet it may be missing, because the workers have it; then the result is None. If it exists it must be valid,
    because graders must not see the variables that it names. Raises `ConfigError`.
    """
    if on_fleet and find_configuration(settings, config_path, start_folder=evaluation_folder) is None:
        return None
    return load_configuration(settings, config_path, start_folder=evaluation_folder)


def select_targets(
    evaluation: Evaluation, config: Config | None, only_targets: tuple[str, ...], *, on_fleet: bool
) -> tuple[str, ...]:
    """Return the targets under test: those of the evaluation, narrowed to ``only_targets``.

    On a fleet any name is accepted here; the run checks it there before the first call. Raises `ConfigError`.
    """
    known_targets = [] if config is None else list(config.targets)
    if on_fleet:
        known_targets += [*(evaluation.spec.targets or ()), *only_targets]
    return choose_targets(evaluation, list(dict.fromkeys(known_targets)), only_targets)


def embedded_fleet_plan(
    settings: Settings, config: Config, ledger_url: str, *, results_folder: Path | None = None
) -> FleetPlan:
    """Return the plan for running all services in this process with this ledger.

    ``results_folder`` is used by only one fleet at a time, see `FleetPlan.exclusive_path`.
    """
    return FleetPlan(
        config=config,
        env=environment(),
        broker_url=MEMORY_URL,
        ledger_url=ledger_url,
        admin_token=settings.admin_token or secrets.token_urlsafe(32),
        exclusive_path=None if results_folder is None else str(results_folder.absolute()),
        timings=settings.timings,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The connection of a run to its services.

    ``admin`` opens the run's session if there is an admin token; else the session is a child of that of
    ``parent_token``. ``connect_session`` opens the client of a session by its token, and ``read_session_info`` returns
    the counters of a session by its token; ``close_session`` closes it.
    """

    #: Where the services run, to show to the user.
    location: str
    gateway_url: str
    admin: Admin | None
    parent_token: str | None
    connect_session: Callable[[str], AbstractAsyncContextManager[Client]]
    read_session_info: Callable[[str], Awaitable[Info]]
    close_session: Callable[[str], Awaitable[Info]]


@contextlib.asynccontextmanager
async def connect_backend(settings: Settings, plan: FleetPlan | None) -> AsyncIterator[Backend]:
    """Start the services of the plan or, without a plan, connect to the environment's broker or gateway.

    Raises `ConfigError`, `BrokerUnavailable`, `BrokerRefused` or `GatewayUnavailable`.
    """
    if plan is None and settings.broker_url is None and settings.gateway_url is not None:
        async with _connect_http_backend(settings, settings.gateway_url) as backend:
            yield backend
    else:
        async with _connect_bus_backend(settings, plan) as backend:
            yield backend


@contextlib.asynccontextmanager
async def _connect_bus_backend(settings: Settings, plan: FleetPlan | None) -> AsyncIterator[Backend]:
    async with contextlib.AsyncExitStack() as stack:
        memory: MemoryBroker | None = None
        url, admin_token = settings.broker_url or "", settings.admin_token
        gateway_url = None
        if plan is not None:
            embedded = await stack.enter_async_context(run_fleet(plan))
            memory, url, admin_token = embedded.memory, embedded.broker_url, embedded.admin_token
            gateway_url = embedded.gateway_url
        bus = await stack.enter_async_context(
            services.open_bus(url, "run", memory, timeout_seconds=BROKER_TIMEOUT_SECONDS)
        )
        if gateway_url is None:
            gateway_url = await stack.enter_async_context(
                quintain_gateway.run_gateway(bus, BindAddress(), GatewayLimits())
            )
        rpc_client = RpcClient(bus)
        await rpc_client.start()
        stack.push_async_callback(rpc_client.close)
        yield Backend(
            location=f"the fleet at {without_password(url)}" if plan is None else "in this process",
            gateway_url=gateway_url,
            admin=None if admin_token is None else Admin(AmqpTransport(rpc_client, admin_token)),
            parent_token=settings.session_token,
            connect_session=lambda token: verified_client(AmqpTransport(rpc_client, token)),
            read_session_info=lambda token: Client(AmqpTransport(rpc_client, token)).get_info(),
            close_session=lambda token: Client(AmqpTransport(rpc_client, token)).close_session(),
        )


@contextlib.asynccontextmanager
async def _connect_http_backend(settings: Settings, url: str) -> AsyncIterator[Backend]:
    async with contextlib.AsyncExitStack() as stack:
        admin: Admin | None = None
        if settings.admin_token is not None:
            admin = Admin(await stack.enter_async_context(open_http_transport(url, settings.admin_token)))
        # One HTTP connection for the counters of all child sessions: there are thousands, each is read once.
        info_connection = await stack.enter_async_context(open_http_connection(url))

        @contextlib.asynccontextmanager
        async def connect_session(token: str) -> AsyncIterator[Client]:
            async with open_http_transport(url, token) as transport, verified_client(transport) as client:
                yield client

        yield Backend(
            location=f"the fleet behind {info_connection.address}",
            gateway_url=url.rstrip("/"),
            admin=admin,
            parent_token=settings.session_token,
            connect_session=connect_session,
            read_session_info=lambda token: Client(HttpTransport(info_connection, token)).get_info(),
            close_session=lambda token: Client(HttpTransport(info_connection, token)).close_session(),
        )
