"""``quintain serve gateway``: HTTP at the edge, on a port of its own, until SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quintain.bus.broker_url import shown
from quintain.operations.listening import LOOPBACK
from quintain.settings import environment, read_settings
from quintain_cli import compose
from quintain_cli.operating import broker, waiting
from quintain_cli.screen import run_command, set_up_logging
from quintain_cli.serve import AsJson, Verbose, ready
from quintain_cli.stop import stopping
from quintain_cli.up import DEFAULT_PORT
from quintain_gateway import Address, Limits

_MOST = Limits()


def serve_gateway(
    host: Annotated[str, typer.Option(help="Where to listen; beyond loopback only with TLS.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = DEFAULT_PORT,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate with its chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key without a password, PEM.")] = None,
    insecure_plain_http: Annotated[
        bool, typer.Option("--insecure-plain-http", help="Beyond loopback without TLS: tokens go in the clear.")
    ] = False,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Open at the same time; one more is answered 503.")
    ] = _MOST.most_connections,
    grace_seconds: Annotated[
        float, typer.Option(min=0, help="How long running requests may take after SIGTERM.")
    ] = 30.0,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """HTTP for evaluators of any kind: AgentV's API, sessions, health, metrics. Reads QUINTAIN_BROKER_URL.

    It holds no provider key and no admin token. GET /openapi.json describes what it answers.
    """
    set_up_logging(verbose=verbose)
    address = Address(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key, plain_http=insecure_plain_http)
    limits = Limits(most_connections=max_connections, grace_seconds=grace_seconds)
    run_command(_gateway(address, limits, as_json=as_json), as_json=as_json, service="gateway")


async def _gateway(address: Address, limits: Limits, *, as_json: bool) -> None:
    settings = read_settings(environment())
    url = settings.require_broker_url()
    address.tls()  # an address that may not be opened is no reason to wait for a broker first
    async with (
        stopping() as stop,
        broker(settings, "gateway", waiting) as bus,
        compose.gateway(bus, address, limits) as gateway_url,
    ):
        ready("gateway", {"url": gateway_url, "broker": shown(url)}, as_json=as_json)
        await stop.wait()
