"""``python -m support.serve_oddly serve metadata|worker``: the service of ``quintain serve``, composed the same way,
that dies at a step (`support.dying_bus`) or lives by a clock that is off.

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
from quintain.settings import environment, read_settings
from quintain_cli import compose
from quintain_cli.config import configuration
from quintain_cli.operating import broker, waiting
from quintain_cli.serve import ready
from quintain_cli.state import ledger_url
from quintain_cli.stop import stopping
from quintain_metadata.running import running_metadata
from support.dying_bus import DIES_VARIABLE, DyingBus, Step

#: By how many seconds this process's clock is ahead.
AHEAD_VARIABLE = "TEST_CLOCK_AHEAD"


@contextlib.asynccontextmanager
async def bus_of(name: str) -> AsyncIterator[Bus]:
    """The broker's bus, which dies at its step where one is named."""
    async with broker(read_settings(environment()), name, waiting) as bus:
        step = os.environ.get(DIES_VARIABLE)
        yield bus if step is None else DyingBus(bus, Step(**json.loads(step)))


async def metadata() -> None:
    settings = read_settings(environment())
    async with (
        stopping() as stop,
        compose.ledger(ledger_url(settings)) as ledger,
        bus_of("metadata") as bus,
        running_metadata(bus, ledger, settings.admin_token, timings=settings.timings),
    ):
        ready("metadata", {}, as_json=False)
        await stop.wait()


async def worker() -> None:
    env = environment()
    settings = read_settings(env)
    async with (
        stopping() as stop,
        bus_of("worker") as bus,
        compose.worker(bus, configuration(settings, None), env, timings=settings.timings),
    ):
        ready("worker", {}, as_json=False)
        await stop.wait()


if __name__ == "__main__":
    ahead, true_time = float(os.environ.get(AHEAD_VARIABLE, "0")), time.time
    time.time = lambda: true_time() + ahead
    asyncio.run({"metadata": metadata, "worker": worker}[sys.argv[-1]]())
