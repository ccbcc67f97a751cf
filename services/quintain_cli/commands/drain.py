"""``quintain drain``: asks one worker to take no more calls, finish the running ones and exit."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from quintain.contracts.admin import RegisteredWorker, WorkerList
from quintain.contracts.ledger import DrainState
from quintain.timings import DEFAULT_TIMINGS
from quintain_cli.console import (
    EXIT_ERRORS,
    EXIT_OK,
    escape_for_terminal,
    print_json,
    print_stderr,
    run_command,
    stdout_console,
)
from quintain_cli.fleet.admin_client import open_fleet_admin

#: How often the ledger is asked how far the worker is, in seconds.
POLL_SECONDS = 0.5


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
    worker_list = run_command(_drain_worker(worker_id, timeout if wait else 0, as_json=as_json), as_json=as_json)
    code = EXIT_OK if not wait or all(map(is_drained, worker_list.workers)) else EXIT_ERRORS
    if as_json:
        print_json({"exitCode": code, **json.loads(worker_list.to_wire())})
    else:
        for worker in worker_list.workers:
            stdout_console().print(
                escape_for_terminal(_outcome_line(worker, worker_list.now)), markup=False, soft_wrap=True
            )
        all_finished = all(is_finished(one, worker_list.now) for one in worker_list.workers)
        print_stderr(
            "next     quintain status"
            if all_finished
            else f"next     quintain drain {escape_for_terminal(worker_id)}, which waits on"
        )
    raise typer.Exit(code)


async def _drain_worker(worker_id: str, wait_seconds: float, *, as_json: bool) -> WorkerList:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    async with open_fleet_admin() as admin:
        worker_list = await admin.drain(worker_id)
        # A supervisor may start another process under the same id: that one was not asked.
        incarnations = {worker.incarnation for worker in worker_list.workers}
        if wait_seconds and not as_json:
            print_stderr(f"asked    {escape_for_terminal(worker_id)}: ctrl-c ends this waiting, and not the drain")
        while loop.time() < deadline and not all(is_finished(one, worker_list.now) for one in worker_list.workers):
            await asyncio.sleep(POLL_SECONDS)
            current = await admin.workers()
            worker_list = WorkerList(
                workers=[one for one in current.workers if one.incarnation in incarnations], now=current.now
            )
    return worker_list


def is_drained(worker: RegisteredWorker) -> bool:
    """Whether it has said that it drained, and the ledger has heard how each of its calls ended."""
    return worker.drain is DrainState.DRAINED and not worker.running


def is_finished(worker: RegisteredWorker, now: int) -> bool:
    """Whether nothing more is to come of it: it has drained, or its lease has lapsed."""
    return is_drained(worker) or worker.lease_until <= now


def _outcome_line(worker: RegisteredWorker, now: int) -> str:
    """What became of it, in a line."""
    calls = "1 call" if worker.running == 1 else f"{worker.running} calls"
    if is_drained(worker):
        return f"drained  {worker.worker_id}"
    if worker.drain is DrainState.DRAINED:
        return f"drained  {worker.worker_id}, but {calls} outlived its grace: taken over, or in doubt"
    if worker.lease_until <= now:
        return f"lost     {worker.worker_id} ended before it had drained, with {calls}: others take them over"
    if worker.drain is DrainState.DRAINING:
        return f"draining {worker.worker_id}, with {calls} to finish"
    return f"asked    {worker.worker_id}: it hears of it within {DEFAULT_TIMINGS.heartbeat_seconds:.0f} s"
