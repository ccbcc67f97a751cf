"""``quintain drain``: asks one worker to take no more calls, finish the running ones and exit."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from quintain.contracts.ledger import DrainState
from quintain.contracts.session import RegisteredWorker, WorkerList
from quintain.timings import DEFAULT_TIMINGS
from quintain_cli.console import (
    EXIT_ERRORS,
    EXIT_OK,
    AsJson,
    escape_for_terminal,
    print_result,
    print_stderr,
    run_command,
    stdout_console,
)
from quintain_cli.running_fleet import open_fleet_admin

#: The interval at which the worker's state is read from the metadata service, in seconds.
POLL_SECONDS = 0.5


def drain(
    worker_id: Annotated[str, typer.Argument(metavar="WORKER_ID", help="The worker, as `quintain status` shows it.")],
    wait: Annotated[bool, typer.Option(help="Wait until the worker has drained.")] = True,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait; the drain goes on afterwards.")] = 120.0,
    as_json: AsJson = False,
) -> None:
    """Ask a worker to drain and exit, as SIGTERM does.

    The worker takes no more calls, returns those that have not started, finishes running calls within its grace
    period, and exits. A supervisor that restarts processes would start a new worker: scale it down first.

    Reads QUINTAIN_BROKER_URL and QUINTAIN_ADMIN_TOKEN. Exit codes: 0 it has drained (with --no-wait: it was asked to),
    1 it has not drained in time or cannot be asked.
    """
    worker_list = run_command(_drain_worker(worker_id, timeout if wait else 0, as_json=as_json), as_json=as_json)
    code = EXIT_OK if not wait or all(map(is_drained, worker_list.workers)) else EXIT_ERRORS
    if as_json:
        print_result(worker_list, code)
    else:
        for worker in worker_list.workers:
            stdout_console().print(
                escape_for_terminal(_outcome_line(worker, worker_list.now)), markup=False, soft_wrap=True
            )
        all_finished = all(is_finished(worker, worker_list.now) for worker in worker_list.workers)
        print_stderr(
            "next     quintain status"
            if all_finished
            else f"next     quintain drain {escape_for_terminal(worker_id)}, to go on waiting"
        )
    raise typer.Exit(code)


async def _drain_worker(worker_id: str, wait_seconds: float, *, as_json: bool) -> WorkerList:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    async with open_fleet_admin() as admin:
        worker_list = await admin.drain(worker_id)
        # A supervisor may start a new process with the same id, which was not asked to drain.
        incarnations = {worker.incarnation for worker in worker_list.workers}
        if wait_seconds and not as_json:
            print_stderr(f"asked    {escape_for_terminal(worker_id)}: ctrl-c ends the waiting but not the drain")
        while loop.time() < deadline and not all(
            is_finished(worker, worker_list.now) for worker in worker_list.workers
        ):
            await asyncio.sleep(POLL_SECONDS)
            current = await admin.workers()
            worker_list = WorkerList(
                workers=[worker for worker in current.workers if worker.incarnation in incarnations], now=current.now
            )
    return worker_list


def is_drained(worker: RegisteredWorker) -> bool:
    """Whether a worker has drained and the ledger knows how each of its calls ended."""
    return worker.drain is DrainState.DRAINED and not worker.running


def is_finished(worker: RegisteredWorker, now: int) -> bool:
    """Whether waiting is over: the worker has drained, or its lease has expired."""
    return is_drained(worker) or worker.lease_until <= now


def _outcome_line(worker: RegisteredWorker, now: int) -> str:
    """Format the outcome for one worker as a line."""
    calls = "1 call" if worker.running == 1 else f"{worker.running} calls"
    if is_drained(worker):
        return f"drained  {worker.worker_id}"
    if worker.drain is DrainState.DRAINED:
        return f"drained  {worker.worker_id}, but {calls} outlasted its grace period: taken over, or in doubt"
    if worker.lease_until <= now:
        return f"lost     {worker.worker_id} ended before it had drained, with {calls}: other workers take them over"
    if worker.drain is DrainState.DRAINING:
        return f"draining {worker.worker_id}, with {calls} to finish"
    return f"asked    {worker.worker_id}: it gets the request within {DEFAULT_TIMINGS.heartbeat_seconds:.0f} s"
