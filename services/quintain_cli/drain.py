"""``quintain drain``: ask one worker to take no more calls, finish what it runs, and end; with the admin token."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from quintain.contracts.ledger import Drain
from quintain.contracts.operating import RegisteredWorker, WorkerList
from quintain.timings import DEFAULT_TIMINGS
from quintain_cli.fleet_admin import fleet_admin
from quintain_cli.screen import ERRORS, OK, out, plain, print_json, run_command, tell

#: How often the ledger is asked how far the worker is, in seconds.
LOOK_SECONDS = 0.5


def drain(
    worker_id: Annotated[str, typer.Argument(metavar="WORKER_ID", help="The worker, as `quintain status` shows it.")],
    wait: Annotated[bool, typer.Option(help="Return when it has drained, and not at once.")] = True,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait; it drains on after that, too.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only what became of it, as JSON.")] = False,
) -> None:
    """Ask a worker to drain, as SIGTERM does: it takes no more calls, gives back what has not started, finishes what
    runs within its grace, and ends. What restarts ended processes starts a new one: scale that down first.

    Reads QUINTAIN_BROKER_URL and QUINTAIN_ADMIN_TOKEN. Exit codes: 0 it has drained (with --no-wait: it was asked),
    1 it has not, or cannot be asked.
    """
    told = run_command(_drain(worker_id, timeout if wait else 0, as_json=as_json), as_json=as_json)
    code = OK if not wait or all(map(is_done, told.workers)) else ERRORS
    if as_json:
        print_json({"exitCode": code, **json.loads(told.to_wire())})
    else:
        for one in told.workers:
            out().print(plain(_outcome(one, told.now)), markup=False, soft_wrap=True)
        over = all(is_over(one, told.now) for one in told.workers)
        tell("next     quintain status" if over else f"next     quintain drain {plain(worker_id)}, which waits on")
    raise typer.Exit(code)


async def _drain(worker_id: str, wait_seconds: float, *, as_json: bool) -> WorkerList:
    loop = asyncio.get_running_loop()
    ends = loop.time() + wait_seconds
    async with fleet_admin() as admin:
        told = await admin.drain(worker_id)
        # A supervisor may start another process under the same id: that one was not asked.
        asked = {one.incarnation for one in told.workers}
        if wait_seconds and not as_json:
            tell(f"asked    {plain(worker_id)}: ctrl-c ends this waiting, and not the drain")
        while loop.time() < ends and not all(is_over(one, told.now) for one in told.workers):
            await asyncio.sleep(LOOK_SECONDS)
            known = await admin.workers()
            told = WorkerList(workers=[one for one in known.workers if one.incarnation in asked], now=known.now)
    return told


def is_done(worker: RegisteredWorker) -> bool:
    """Whether it has said that it drained, and the ledger has heard how each of its calls ended."""
    return worker.drain is Drain.DRAINED and not worker.running


def is_over(worker: RegisteredWorker, now: int) -> bool:
    """Whether nothing more is to come of it: it has drained, or its lease has lapsed."""
    return is_done(worker) or worker.lease_until <= now


def _outcome(worker: RegisteredWorker, now: int) -> str:
    """What became of it, in a line."""
    calls = "1 call" if worker.running == 1 else f"{worker.running} calls"
    if is_done(worker):
        return f"drained  {worker.worker_id}"
    if worker.drain is Drain.DRAINED:
        return f"drained  {worker.worker_id}, but {calls} outlived its grace: taken over, or in doubt"
    if worker.lease_until <= now:
        return f"lost     {worker.worker_id} ended before it had drained, with {calls}: others take them over"
    if worker.drain is Drain.DRAINING:
        return f"draining {worker.worker_id}, with {calls} to finish"
    return f"asked    {worker.worker_id}: it hears of it within {DEFAULT_TIMINGS.heartbeat_seconds:.0f} s"
