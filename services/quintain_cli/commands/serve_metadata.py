"""``quintain serve metadata``: runs the metadata service until SIGTERM."""

from __future__ import annotations

from functools import partial

from quintain.errors import ConfigError
from quintain.rpc.broker_probe import report_ready
from quintain.runtime.process_memory import exempt_existing_objects, map_large_blocks
from quintain.settings import environment, read_settings
from quintain_cli.console import handle_stop_signals, run_command, set_up_logging
from quintain_cli.running_fleet import ledger_url
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
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.replicas import BROKER_HEARTBEAT_SECONDS, replicated
from quintain_metadata.service import running_metadata
from quintain_metadata.store.base import redacted_url
from quintain_metadata.store.opening import open_ledger_or_wait


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
        open_ledger_or_wait(url, on_waiting=endpoints.set_not_ready) as ledger,
        connect_when_available(
            settings, "metadata", endpoints.set_not_ready, heartbeat_seconds=BROKER_HEARTBEAT_SECONDS
        ) as bus,
        replicated(
            bus,
            ledger,
            partial(
                running_metadata,
                bus,
                ledger,
                settings.admin_token,
                metrics,
                timings=settings.timings,
                retention_days=settings.retention_days,
            ),
        ) as service,
        report_ready(endpoints, bus, service.check, service.card),
    ):
        exempt_existing_objects()
        print_ready("metadata", {"ledger": redacted_url(url)}, as_json=as_json)
        await stop.wait()
