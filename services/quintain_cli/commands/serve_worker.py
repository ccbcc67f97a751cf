"""``quintain serve worker``: runs a worker until SIGTERM."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from quintain.config.loader import load_configuration
from quintain.rpc.broker_probe import report_ready
from quintain.runtime.process_memory import exempt_existing_objects
from quintain.settings import environment, read_settings
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
from quintain_gateway.server import run_agent_gateway
from quintain_worker.target import WorkerMetrics
from quintain_worker.worker import run_worker


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


async def _run_worker(
    config_path: Path | None, grace_seconds: float, ops_options: OpsOptions, *, as_json: bool
) -> None:
    env = environment()
    settings = read_settings(env)
    config = load_configuration(settings, config_path)
    for note in config.notes:
        logging.getLogger(__name__).warning("%s", note)
    metrics = WorkerMetrics()
    async with (
        handle_stop_signals() as stop,
        open_ops_endpoints(metrics, ops_options.address(settings)) as endpoints,
        connect_when_available(settings, "worker", endpoints.set_not_ready) as bus,
        run_worker(
            bus,
            config,
            env,
            grace_seconds=grace_seconds,
            metrics=metrics,
            drain=stop.request,
            agent_gateway=partial(run_agent_gateway, bus),
            timings=settings.timings,
        ) as worker,
        report_ready(endpoints, bus, worker.check, worker.card),
    ):
        exempt_existing_objects()
        print_ready("worker", {"workerId": worker.worker_id, "targets": list(config.targets)}, as_json=as_json)
        await stop.wait()
