"""``quintain serve metadata|worker|gateway``: one service, for ever, until SIGTERM; they start in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError
from quintain.settings import environment, read_settings
from quintain_cli import compose
from quintain_cli.config import configuration
from quintain_cli.operating import OpsHost, OpsPort, OpsWish, broker, operating
from quintain_cli.screen import print_json, run_command, set_up_logging, tell
from quintain_cli.state import ledger_url
from quintain_cli.stop import stopping
from quintain_metadata import MetadataMetrics, running_metadata, shown
from quintain_worker import WorkerMetrics

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object when it is ready.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


def serve_metadata(
    ops_port: OpsPort = None, ops_host: OpsHost = None, as_json: AsJson = False, verbose: Verbose = False
) -> None:
    """Sessions, info and the ledger. Reads QUINTAIN_BROKER_URL, QUINTAIN_LEDGER_URL and QUINTAIN_ADMIN_TOKEN."""
    set_up_logging(verbose=verbose)
    run_command(_metadata(OpsWish(ops_port, ops_host), as_json=as_json), as_json=as_json, service="metadata")


def serve_worker(
    config: Annotated[Path | None, typer.Option(help="The configuration, else quintain.yaml found upwards.")] = None,
    grace_seconds: Annotated[float, typer.Option(help="How long running calls may take after SIGTERM.")] = 30.0,
    ops_port: OpsPort = None,
    ops_host: OpsHost = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Serve the configured targets. Reads QUINTAIN_BROKER_URL, QUINTAIN_CONFIG and the configuration's variables."""
    set_up_logging(verbose=verbose)
    wish = OpsWish(ops_port, ops_host)
    run_command(_worker(config, grace_seconds, wish, as_json=as_json), as_json=as_json, service="worker")


async def _metadata(wish: OpsWish, *, as_json: bool) -> None:
    settings = read_settings(environment())
    settings.require_broker_url()
    url = ledger_url(settings)
    if settings.admin_token is None:
        raise ConfigError("QUINTAIN_ADMIN_TOKEN is not set: any string of 16 characters or more; it opens sessions")
    metrics = MetadataMetrics()
    async with (
        stopping() as stop,
        operating(metrics, wish.address(settings)) as operations,
        # First: what its operator must mend is said at once, whether or not there is a broker yet.
        compose.ledger(url, waiting=operations.waits) as ledger,
        broker(settings, "metadata", operations.waits) as bus,
        running_metadata(bus, ledger, settings.admin_token, metrics, timings=settings.timings) as service,
        operations.running(bus, service.check, service.card),
    ):
        ready("metadata", {"ledger": shown(url)}, as_json=as_json)
        await stop.wait()


async def _worker(path: Path | None, grace_seconds: float, wish: OpsWish, *, as_json: bool) -> None:
    env = environment()
    settings = read_settings(env)
    config = configuration(settings, path)
    metrics = WorkerMetrics()
    async with (
        stopping() as stop,
        operating(metrics, wish.address(settings)) as operations,
        broker(settings, "worker", operations.waits) as bus,
        compose.worker(
            bus,
            config,
            env,
            grace_seconds=grace_seconds,
            metrics=metrics,
            drain=stop.wish,
            timings=settings.timings,
        ) as worker,
        operations.running(bus, worker.check, worker.card),
    ):
        ready("worker", {"workerId": worker.worker_id, "targets": list(config.targets)}, as_json=as_json)
        await stop.wait()


def ready(service: str, facts: dict[str, object], *, as_json: bool) -> None:
    """Say that a service answers, with what it stands on."""
    if as_json:
        print_json({"service": service, "state": "ready", **facts})
    else:
        tell(f"ready  {service}  " + "  ".join(f"{key} {value}" for key, value in facts.items()))
