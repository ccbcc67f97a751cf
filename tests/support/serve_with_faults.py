"""``python -m support.serve_with_faults serve metadata|worker``: the service of ``quintain serve``, composed the same
way, that dies at a step (`support.crashing_bus`) or lives by a clock that is off.

The service's own code is the product's, unchanged; only its bus and its clock are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator

from quintain.bus.base import Bus
from quintain.config.loader import load_configuration
from quintain.settings import environment, read_settings
from quintain_cli.console import handle_stop_signals
from quintain_cli.running_fleet import ledger_url
from quintain_cli.service_process import connect_when_available, print_ready, print_waiting
from quintain_metadata.service import running_metadata
from quintain_metadata.store.opening import open_ledger_or_wait
from quintain_worker.worker import run_worker
from support.crashing_bus import CRASH_VARIABLE, CrashingBus, CrashPoint

#: By how many seconds this process's clock is ahead.
CLOCK_AHEAD_VARIABLE = "TEST_CLOCK_AHEAD"


@contextlib.asynccontextmanager
async def open_bus(name: str) -> AsyncIterator[Bus]:
    """The broker's bus, which dies at its step where one is named."""
    async with connect_when_available(read_settings(environment()), name, print_waiting) as bus:
        step = os.environ.get(CRASH_VARIABLE)
        yield bus if step is None else CrashingBus(bus, CrashPoint(**json.loads(step)))


async def metadata() -> None:
    settings = read_settings(environment())
    async with (
        handle_stop_signals() as stop,
        open_ledger_or_wait(ledger_url(settings)) as ledger,
        open_bus("metadata") as bus,
        running_metadata(bus, ledger, settings.admin_token, timings=settings.timings),
    ):
        print_ready("metadata", {}, as_json=False)
        await stop.wait()


async def worker() -> None:
    env = environment()
    settings = read_settings(env)
    async with (
        handle_stop_signals() as stop,
        open_bus("worker") as bus,
        run_worker(bus, load_configuration(settings, None), env, timings=settings.timings),
    ):
        print_ready("worker", {}, as_json=False)
        await stop.wait()


if __name__ == "__main__":
    ahead, true_time = float(os.environ.get(CLOCK_AHEAD_VARIABLE, "0")), time.time
    time.time = lambda: true_time() + ahead
    asyncio.run({"metadata": metadata, "worker": worker}[sys.argv[-1]]())
