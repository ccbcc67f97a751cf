"""Runs the metadata service in its own process beside a run: ``python -m quintain_metadata``.

Standard input is a socket to the broker of the parent process. The environment names the ledger and the
administrator's token. The process prints one line of JSON once it answers or cannot start
(`quintain_metadata.service.subprocess_status.StartupStatus`), and exits when the parent closes its end of the
socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys

from quintain import logs, telemetry
from quintain.bus.socketpair import SocketpairBus
from quintain.errors import QuintainError
from quintain.runtime.gc import reduce_gc_frequency
from quintain.settings import Settings, environment, read_log_settings, read_settings, read_trace_settings
from quintain_metadata.contents.factory import open_content_store
from quintain_metadata.ledger.factory import open_ledger
from quintain_metadata.service.service import running_metadata
from quintain_metadata.service.subprocess_status import StartupStatus


def main() -> None:
    """Serve until the parent process closes its end of the socket."""
    # A terminal or supervisor sends these signals to the parent too; this process ends when its parent ends.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    env = environment()
    log_settings = read_log_settings(env)
    logs.configure_logging(log_settings.level or logging.WARNING, as_json=log_settings.as_json)
    # Silence the exporter's errors, as the run itself does: it has its own output.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    trace_settings = read_trace_settings(env)
    # Without traces the exporter is not imported: it would take a sixth of the time to start.
    traces = telemetry.export_spans("metadata", trace_settings) if trace_settings.export else contextlib.nullcontext()
    with traces:
        asyncio.run(_serve(read_settings(env)))


async def _serve(settings: Settings) -> None:
    bus = await SocketpairBus.from_socket(socket.socket(fileno=sys.stdin.fileno()))
    try:
        ledger = await open_ledger(settings.ledger_url or "", dedicated_process=True)
        content_store = open_content_store(settings.contents, ledger)
    except QuintainError as error:
        _write_status(StartupStatus.from_error(error))
        return
    try:
        metadata = running_metadata(
            bus,
            ledger,
            settings.admin_token,
            content_store=content_store,
            timings=settings.timings,
            start_window_seconds=0,
        )
        async with metadata:
            reduce_gc_frequency()
            _write_status(StartupStatus())
            await bus.wait_disconnected()
            # The parent is gone: errors of what is cancelled now would be noise.
            logging.disable()
    finally:
        await ledger.close()


def _write_status(status: StartupStatus) -> None:
    sys.stdout.write(status.to_wire().decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
