"""``quintain serve metadata|worker|gateway``: runs one service until SIGTERM; the ops port of every service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.config.loader import load_configuration
from quintain.errors import BrokerUnavailable, ConfigError
from quintain.observe.health import OpsAddress, OpsEndpoints, serve_ops
from quintain.observe.metrics import ServiceMetrics
from quintain.rpc.broker_probe import report_ready
from quintain.runtime.http_server import LOOPBACK
from quintain.runtime.process_memory import exempt_existing_objects, map_large_blocks
from quintain.settings import Settings, environment, read_settings, without_password
from quintain_cli.console import handle_stop_signals, print_json, print_stderr, run_command, set_up_logging
from quintain_cli.running_fleet import ledger_url
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.server import run_gateway
from quintain_gateway.settings import BindAddress, GatewayLimits
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.service import running_metadata
from quintain_metadata.store.base import redacted_url
from quintain_runner import services
from quintain_worker.target import WorkerMetrics

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
    settings: Settings, name: str, on_waiting: Callable[[str], None]
) -> AsyncIterator[Bus]:
    """Connect to the settings' broker, and retry while it is unavailable; ``on_waiting`` gets each reason.

    A service that starts waits for its connection like one that runs.

    Raises `ConfigError` if no broker is configured, and `BrokerRefused`.
    """
    url = settings.require_broker_url()
    while True:
        try:
            bus = await connect_bus(url, name, timeout_seconds=BROKER_RETRY_SECONDS, declare_seconds=None)
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


def serve_metadata(
    ops_port: OpsPort = None, ops_host: OpsHost = None, as_json: AsJson = False, verbose: Verbose = False
) -> None:
    """Run the metadata service: sessions, budgets and the ledger.

    Reads QUINTAIN_BROKER_URL, QUINTAIN_LEDGER_URL, QUINTAIN_ADMIN_TOKEN and
    QUINTAIN_RETENTION_DAYS, after which sessions that have ended are deleted.
    """
    set_up_logging(verbose=verbose)
    map_large_blocks()
    run_command(_run_metadata(OpsOptions(ops_port, ops_host), as_json=as_json), as_json=as_json, service="metadata")


def serve_worker(
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; default: quintain.yaml here or above.")
    ] = None,
    grace_seconds: Annotated[float, typer.Option(help="Seconds that running calls may take after SIGTERM.")] = 30.0,
    ops_port: OpsPort = None,
    ops_host: OpsHost = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run a worker that serves the configured targets.

    Reads QUINTAIN_BROKER_URL, QUINTAIN_CONFIG and the environment variables that the configuration names.
    """
    set_up_logging(verbose=verbose)
    ops_options = OpsOptions(ops_port, ops_host)
    run_command(_run_worker(config, grace_seconds, ops_options, as_json=as_json), as_json=as_json, service="worker")


async def _run_metadata(ops_options: OpsOptions, *, as_json: bool) -> None:
    settings = read_settings(environment())
    settings.require_broker_url()
    url = ledger_url(settings)
    if settings.admin_token is None:
        raise ConfigError(
            "QUINTAIN_ADMIN_TOKEN is not set: choose any string of 16 characters or more; it opens sessions"
        )
    metrics = MetadataMetrics()
    async with (
        handle_stop_signals() as stop,
        open_ops_endpoints(metrics, ops_options.address(settings)) as endpoints,
        # Before the broker is waited for, so that errors in the ledger's settings are reported at once.
        services.open_ledger_or_wait(url, on_waiting=endpoints.set_not_ready) as ledger,
        connect_when_available(settings, "metadata", endpoints.set_not_ready) as bus,
        running_metadata(
            bus,
            ledger,
            settings.admin_token,
            metrics,
            timings=settings.timings,
            retention_days=settings.retention_days,
        ) as service,
        report_ready(endpoints, bus, service.check, service.card),
    ):
        exempt_existing_objects()
        print_ready("metadata", {"ledger": redacted_url(url)}, as_json=as_json)
        await stop.wait()


async def _run_worker(
    config_path: Path | None, grace_seconds: float, ops_options: OpsOptions, *, as_json: bool
) -> None:
    env = environment()
    settings = read_settings(env)
    config = load_configuration(settings, config_path)
    metrics = WorkerMetrics()
    async with (
        handle_stop_signals() as stop,
        open_ops_endpoints(metrics, ops_options.address(settings)) as endpoints,
        connect_when_available(settings, "worker", endpoints.set_not_ready) as bus,
        services.run_worker(
            bus,
            config,
            env,
            grace_seconds=grace_seconds,
            metrics=metrics,
            drain=stop.request,
            timings=settings.timings,
            consumer_timeout_seconds=settings.consumer_timeout_seconds,
        ) as worker,
        report_ready(endpoints, bus, worker.check, worker.card),
    ):
        exempt_existing_objects()
        print_ready("worker", {"workerId": worker.worker_id, "targets": list(config.targets)}, as_json=as_json)
        await stop.wait()


def print_ready(service: str, details: dict[str, object], *, as_json: bool) -> None:
    """Print that a service is ready, with these details about it."""
    if as_json:
        print_json({"service": service, "state": "ready", **details})
    else:
        print_stderr(f"ready  {service}  " + "  ".join(f"{key} {value}" for key, value in details.items()))


#: The port of a gateway where no option names one.
DEFAULT_PORT = 8787

AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(help="A further name under which clients reach the gateway, such as a proxy's; may be repeated."),
]

_DEFAULT_LIMITS = GatewayLimits()

_EarlyStatus = Annotated[
    bool,
    typer.Option(
        "--early-status", help="Send status 200 after 15 s, then newlines until the answer; errors are in the body."
    ),
]


def serve_gateway(
    host: Annotated[str, typer.Option(help="The address to listen on; beyond loopback only with TLS.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = DEFAULT_PORT,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate with its chain, a PEM file.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key without a password, a PEM file.")] = None,
    insecure_plain_http: Annotated[
        bool,
        typer.Option(
            "--insecure-plain-http",
            help="Allow other addresses than loopback without TLS: tokens are sent unencrypted.",
        ),
    ] = False,
    allowed_host: AllowedHosts = None,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Maximum number of open connections; a further one gets 503.")
    ] = _DEFAULT_LIMITS.max_connections,
    max_session_requests: Annotated[
        int, typer.Option(min=1, help="Maximum number of requests of one session at once; a further one gets 503.")
    ] = _DEFAULT_LIMITS.max_session_requests,
    answer_seconds: Annotated[
        float, typer.Option(min=1, help="Seconds after which an answer that is not streamed is 504.")
    ] = _DEFAULT_LIMITS.answer_seconds,
    early_status: _EarlyStatus = False,
    grace_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests may take after SIGTERM.")
    ] = 30.0,
    ops_port: OpsPort = None,
    ops_host: OpsHost = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run the HTTP gateway: OpenAI's, Anthropic's and AgentV's APIs.

    Also serves sessions, health and metrics. Reads QUINTAIN_BROKER_URL. The gateway holds no provider key and no
    admin token. GET /openapi.json describes its API.
    """
    set_up_logging(verbose=verbose)
    map_large_blocks()
    address = BindAddress(
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        allow_plain_http=insecure_plain_http,
        allowed_hosts=tuple(allowed_host or ()),
    )
    limits = GatewayLimits(
        max_connections=max_connections,
        max_session_requests=max_session_requests,
        answer_seconds=answer_seconds,
        early_status=early_status,
        grace_seconds=grace_seconds,
    )
    ops_options = OpsOptions(ops_port, ops_host)
    run_command(_run_gateway(address, limits, ops_options, as_json=as_json), as_json=as_json, service="gateway")


async def _run_gateway(address: BindAddress, limits: GatewayLimits, ops_options: OpsOptions, *, as_json: bool) -> None:
    settings = read_settings(environment())
    url = settings.require_broker_url()
    address.ssl_context()  # report an address that is not allowed before waiting for the broker
    metrics = GatewayMetrics()
    async with (
        handle_stop_signals() as stop,
        open_ops_endpoints(metrics, ops_options.address(settings)) as endpoints,
        connect_when_available(settings, "gateway", endpoints.set_not_ready) as bus,
        run_gateway(bus, address, limits, metrics=metrics, ops_endpoints=endpoints) as gateway_url,
    ):
        exempt_existing_objects()
        print_ready("gateway", {"url": gateway_url, "broker": without_password(url)}, as_json=as_json)
        await stop.wait()
