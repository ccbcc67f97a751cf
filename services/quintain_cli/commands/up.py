"""``quintain up``: runs all services in one process, over an in-memory or a real broker, until SIGTERM."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from quintain.config.loader import Config, load_configuration
from quintain.contracts.session import OpenSession, Priority, SessionOpened
from quintain.settings import MEMORY_URL, environment, read_settings, without_password
from quintain_cli.commands.serve_gateway import DEFAULT_PORT, AllowedHosts
from quintain_cli.console import (
    handle_stop_signals,
    print_json,
    print_stderr,
    print_stdout,
    run_command,
    set_up_logging,
)
from quintain_cli.running_fleet import ledger_url, read_or_create_admin_token
from quintain_runner.services import Fleet, FleetPlan, run_fleet


def up(
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; default: quintain.yaml here or above.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's port on 127.0.0.1.")] = DEFAULT_PORT,
    allowed_host: AllowedHosts = None,
    max_calls: Annotated[int, typer.Option(min=0, help="The call limit of the session that it opens.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when all services are ready.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Include debug logs.")] = False,
) -> None:
    """Run all services in this process. Without QUINTAIN_BROKER_URL no broker is needed (memory://)."""
    set_up_logging(verbose=verbose)
    run_command(_run_up(config, port, tuple(allowed_host or ()), max_calls, as_json=as_json), as_json=as_json)


async def _run_up(
    config_path: Path | None, port: int, allowed_hosts: tuple[str, ...], max_calls: int, *, as_json: bool
) -> None:
    settings = read_settings(environment())
    config = load_configuration(settings, config_path)
    for note in config.notes:
        logging.getLogger(__name__).warning("%s", note)
    plan = FleetPlan(
        config=config,
        env=environment(),
        broker_url=settings.broker_url or MEMORY_URL,
        ledger_url=ledger_url(settings),
        admin_token=read_or_create_admin_token(settings),
        port=port,
        allowed_hosts=allowed_hosts,
        exclusive_path=None if settings.broker_url or settings.ledger_url else str(settings.state_dir.absolute()),
        timings=settings.timings,
        retention_days=settings.retention_days,
    )
    async with handle_stop_signals() as stop, run_fleet(plan) as running_fleet:
        first_target = next(iter(config.targets))
        request = OpenSession(
            default_target=first_target,
            max_calls=max_calls,
            priority=Priority.INTERACTIVE,
            label="opened by quintain up",
        )
        opened = await running_fleet.open_session(request)
        _print_started(running_fleet, config, opened, as_json=as_json)
        await stop.wait()


def _print_started(running_fleet: Fleet, config: Config, opened: SessionOpened, *, as_json: bool) -> None:
    details = {
        "gatewayUrl": running_fleet.gateway_url,
        "fleetUrl": f"{running_fleet.gateway_url}/fleet",
        "brokerUrl": without_password(running_fleet.broker_url),
        "targets": list(config.targets),
        "sessionId": opened.session_id,
        "token": opened.token,
    }
    if as_json:
        print_json(details)
        return
    curl_command = (
        f"curl -s {running_fleet.gateway_url}/invoke -H 'Authorization: Bearer {opened.token}' "
        '-d \'{"question": "Hello?"}\''
    )
    addresses = {"gateway": details["gatewayUrl"], "fleet": details["fleetUrl"], "broker": details["brokerUrl"]}
    lines = "\n".join(f"{name:8} {address}" for name, address in addresses.items())
    print_stdout(lines)
    print_stdout(f"targets  {', '.join(config.targets)}\ntry      {curl_command}")
    print_stderr("stop     ctrl-c")
