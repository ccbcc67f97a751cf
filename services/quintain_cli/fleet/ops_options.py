"""Options and setup of a service's ops port: ``--ops-port``, else ``QUINTAIN_OPS_PORT``, else none."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.errors import BrokerUnavailable
from quintain.observability.metrics import ServiceMetrics
from quintain.observability.ops_server import OpsAddress, OpsEndpoints, serve_ops
from quintain.settings import Settings
from quintain_cli.console import print_stderr

#: A service that waits for its broker says so this often.
BROKER_RETRY_SECONDS = 5.0

OpsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Health and metrics over HTTP; 0 takes a free port. Else QUINTAIN_OPS_PORT."),
]
OpsHost = Annotated[str | None, typer.Option(help="Where that port listens. Else QUINTAIN_OPS_HOST, else 127.0.0.1.")]


@dataclass(frozen=True, slots=True)
class OpsOptions:
    """What the command line says of the operations port, where it says anything."""

    port: int | None
    host: str | None

    def address(self, settings: Settings) -> OpsAddress | None:
        """Where it is to listen, if at all."""
        port = settings.ops_port if self.port is None else self.port
        return None if port is None else OpsAddress(port, self.host or settings.ops_host)


@contextlib.asynccontextmanager
async def open_ops_endpoints(metrics: ServiceMetrics, address: OpsAddress | None) -> AsyncIterator[OpsEndpoints]:
    """What the service tells of itself from now on; over HTTP where there is an address. Raises `ConfigError`."""
    endpoints = OpsEndpoints(metrics, print_waiting)
    async with contextlib.AsyncExitStack() as stack:
        if address is not None:
            url = await stack.enter_async_context(serve_ops(address, endpoints))
            print_stderr(f"health   {url}/health/ready  {url}/metrics")
        yield endpoints


def print_waiting(reason: str) -> None:
    """Say that a service waits, and for what."""
    print_stderr(f"waiting  {reason}")


@contextlib.asynccontextmanager
async def connect_when_available(
    settings: Settings, name: str, on_waiting: Callable[[str], None]
) -> AsyncIterator[Bus]:
    """The broker's bus; a broker that is not there yet is waited for; ``on_waiting`` is told why."""
    url = settings.require_broker_url()
    while True:
        try:
            bus = await connect_bus(url, name, timeout_seconds=BROKER_RETRY_SECONDS)
        except BrokerUnavailable as error:
            on_waiting(error.message)
        else:
            break
    try:
        yield bus
    finally:
        await bus.close()
