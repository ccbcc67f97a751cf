"""``quintain serve gateway``: serves HTTP on a port until SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quintain.bus.broker_url import without_password
from quintain.runtime.http_server import LOOPBACK
from quintain.settings import environment, read_settings
from quintain_cli.commands.serve import AsJson, Verbose, print_ready
from quintain_cli.commands.up import DEFAULT_PORT
from quintain_cli.console import run_command, set_up_logging
from quintain_cli.fleet import bootstrap
from quintain_cli.fleet.ops_options import connect_when_available, print_waiting
from quintain_cli.signals import handle_stop_signals
from quintain_gateway import BindAddress, GatewayLimits

_DEFAULT_LIMITS = GatewayLimits()


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
    max_connections: Annotated[
        int, typer.Option(min=1, help="Maximum number of open connections; a further one gets 503.")
    ] = _DEFAULT_LIMITS.max_connections,
    grace_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests may take after SIGTERM.")
    ] = 30.0,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run the HTTP gateway: OpenAI's, Anthropic's and AgentV's APIs.

    Also serves sessions, health and metrics. Reads QUINTAIN_BROKER_URL. The gateway holds no provider key and no
    admin token. GET /openapi.json describes its API.
    """
    set_up_logging(verbose=verbose)
    address = BindAddress(
        host=host, port=port, tls_cert=tls_cert, tls_key=tls_key, allow_plain_http=insecure_plain_http
    )
    limits = GatewayLimits(max_connections=max_connections, grace_seconds=grace_seconds)
    run_command(_run_gateway(address, limits, as_json=as_json), as_json=as_json, service="gateway")


async def _run_gateway(address: BindAddress, limits: GatewayLimits, *, as_json: bool) -> None:
    settings = read_settings(environment())
    url = settings.require_broker_url()
    address.ssl_context()  # report an address that is not allowed before waiting for the broker
    async with (
        handle_stop_signals() as stop,
        connect_when_available(settings, "gateway", print_waiting) as bus,
        bootstrap.run_gateway(bus, address, limits) as gateway_url,
    ):
        print_ready("gateway", {"url": gateway_url, "broker": without_password(url)}, as_json=as_json)
        await stop.wait()
