"""A program whose start is cancelled has ended, and is known to have ended, before its caller goes on."""

from __future__ import annotations

import subprocess
import sys

#: Each loop ends at once after the cancellation: what nobody has waited for is then warned of on stderr.
CANCELLED = """
import asyncio, gc, os
from quintain.programs.processes import start_process
from quintain.programs.program import Program

async def start_and_cancel(turns):
    starting = asyncio.ensure_future(start_process(Program(argv=["sleep", "600"], env={"PATH": os.defpath})))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    print("cancelled" if starting.cancelled() else "started")

for turns in range(6):
    asyncio.run(start_and_cancel(turns))
    gc.collect()
"""


def test_a_start_that_is_cancelled_leaves_no_process_that_nobody_waits_for() -> None:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", CANCELLED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert ended.stderr == ""
    assert "cancelled" in ended.stdout
