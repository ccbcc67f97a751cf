"""``quintain serve gateway``: runs the HTTP gateway until SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quintain.runtime.http_server import LOOPBACK
from quintain.runtime.process_memory import exempt_existing_objects, map_large_blocks
from quintain.settings import environment, read_settings, without_password
from quintain_cli.console import handle_stop_signals, run_command, set_up_logging
from quintain_cli.service_process import (
    AsJson,
    OpsHost,
    OpsOptions,
    OpsPort,
    Verbose,
    connect_when_available,
    open_ops_endpoints,
    print_ready,
)
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.server import run_gateway
from quintain_gateway.settings import BindAddress, GatewayLimits

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
        run_gateway(
            bus, address, limits, metrics=metrics, ops_endpoints=endpoints, timings=settings.timings
        ) as gateway_url,
    ):
        exempt_existing_objects()
        print_ready("gateway", {"url": gateway_url, "broker": without_password(url)}, as_json=as_json)
        await stop.wait()
