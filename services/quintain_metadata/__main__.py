"""The metadata service in a process beside a run: ``python -m quintain_metadata``, for whoever starts it.

Its standard input is the pipe to the broker of the process that started it; its ledger and its administrator's token
are named by the environment, as everywhere. It prints one line when it answers, or why it does not (`quintain_metadata.
apart.Word`), and ends when the other end of the pipe has gone, however that came.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys

from quintain import logs
from quintain.bus.pipe import PipeBus
from quintain.errors import QuintainError
from quintain.operations.collecting import collect_seldom
from quintain.settings import Settings, environment, read_log_settings, read_settings, read_trace_settings
from quintain.telemetry.export import exporting
from quintain_metadata.apart import Word
from quintain_metadata.ledger_factory import open_ledger
from quintain_metadata.running import running_metadata


def main() -> None:
    """Serve until nobody is there to be served."""
    # What these mean is for its owner to understand, whose end is its end; a supervisor sends them to both.
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    env = environment()
    said = read_log_settings(env)
    logs.set_up(said.level or logging.WARNING, as_json=said.as_json)
    # As in the run itself, which shows its work by itself.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    with exporting("metadata", read_trace_settings(env)):
        asyncio.run(_serve(read_settings(env)))


async def _serve(settings: Settings) -> None:
    bus = await PipeBus.over(socket.socket(fileno=sys.stdin.fileno()))
    try:
        ledger = await open_ledger(settings.ledger_url or "", alone=True)
    except QuintainError as error:
        _say(Word.of(error))
        return
    try:
        async with running_metadata(bus, ledger, settings.admin_token, timings=settings.timings):
            collect_seldom()
            _say(Word())
            await bus.wait_gone()
            # Nobody is there any more who could read of what is cut off.
            logging.disable()
    finally:
        await ledger.close()


def _say(word: Word) -> None:
    sys.stdout.write(word.to_wire().decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
