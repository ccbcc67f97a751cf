"""What the commands that run one service share: the ops port, the wait for the broker, the word that it is ready."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from quintain.bus.base import HEARTBEAT_SECONDS, Bus
from quintain.bus.connect import connect_bus
from quintain.errors import BrokerUnavailable
from quintain.observe.health import OpsAddress, OpsEndpoints, serve_ops
from quintain.observe.metrics import ServiceMetrics
from quintain.settings import Settings
from quintain_cli.console import print_json, print_stderr

#: The timeout of one attempt to connect to the broker, in seconds.
BROKER_RETRY_SECONDS = 5.0

OpsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port for health and metrics; 0 takes a free one. Default: QUINTAIN_OPS_PORT."),
]
OpsHost = Annotated[str | None, typer.Option(help="Address of that port. Default: QUINTAIN_OPS_HOST, else 127.0.0.1.")]


@dataclass(frozen=True, slots=True)
class OpsOptions:
    """The ops port and host from the command line; None if they are not given."""

    port: int | None
    host: str | None

    def address(self, settings: Settings) -> OpsAddress | None:
        """Return the address of the ops port, or None if no port is configured."""
        port = settings.ops_port if self.port is None else self.port
        return None if port is None else OpsAddress(port, self.host or settings.ops_host)


@contextlib.asynccontextmanager
async def open_ops_endpoints(metrics: ServiceMetrics, address: OpsAddress | None) -> AsyncIterator[OpsEndpoints]:
    """Create a service's health and metrics endpoints; serve them over HTTP if there is an address.

    Raises `ConfigError` if the address cannot be opened.
    """
    endpoints = OpsEndpoints(metrics, print_waiting)
    async with contextlib.AsyncExitStack() as stack:
        if address is not None:
            url = await stack.enter_async_context(serve_ops(address, endpoints))
            print_stderr(f"health   {url}/health/ready  {url}/metrics")
        yield endpoints


def print_waiting(reason: str) -> None:
    """Print that a service waits, with the reason."""
    print_stderr(f"waiting  {reason}")


@contextlib.asynccontextmanager
async def connect_when_available(
    settings: Settings, name: str, on_waiting: Callable[[str], None], *, heartbeat_seconds: int = HEARTBEAT_SECONDS
) -> AsyncIterator[Bus]:
    """Connect to the settings' broker, and retry while it is unavailable; ``on_waiting`` gets each reason.

    A service that starts waits for its connection like one that runs. ``heartbeat_seconds`` is that of `RabbitBus`.

    Raises `ConfigError` if no broker is configured, and `BrokerRefused`.
    """
    url = settings.require_broker_url()
    while True:
        try:
            bus = await connect_bus(
                url,
                name,
                timeout_seconds=BROKER_RETRY_SECONDS,
                declare_seconds=None,
                heartbeat_seconds=heartbeat_seconds,
            )
        except BrokerUnavailable as error:
            on_waiting(error.message)
        else:
            break
    try:
        yield bus
    finally:
        await bus.close()


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object when the service is ready.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Include debug logs.")]


def print_ready(service: str, details: dict[str, object], *, as_json: bool) -> None:
    """Print that a service is ready, with these details about it."""
    if as_json:
        print_json({"service": service, "state": "ready", **details})
    else:
        print_stderr(f"ready  {service}  " + "  ".join(f"{key} {value}" for key, value in details.items()))
