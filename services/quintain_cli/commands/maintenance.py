"""``quintain target``, ``drain``, ``ledger``: pauses targets, ends workers; reads and changes the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from quintain.contracts.ledger import DrainState
from quintain.contracts.money import dollars_text, picodollars, to_dollars
from quintain.contracts.session import RegisteredWorker, WorkerList
from quintain.fleet.tables import duration
from quintain.settings import environment, read_settings
from quintain.timings import DEFAULT_TIMINGS
from quintain_cli.console import (
    EXIT_ERRORS,
    EXIT_OK,
    AsJson,
    escape_for_terminal,
    parse_duration_seconds,
    print_json,
    print_result,
    print_stderr,
    print_stdout,
    run_command,
)
from quintain_cli.running_fleet import ask_admin, ledger_url, open_fleet_admin
from quintain_metadata.ledger.audit import AuditReport, export_page, verify_counters
from quintain_metadata.ledger.held import release_held
from quintain_metadata.ledger.pruning import PruneReport, find_old
from quintain_metadata.ledger.pruning import prune as delete_old
from quintain_metadata.store.base import Ledger
from quintain_metadata.store.opening import open_ledger, open_snapshot

TargetArgument = Annotated[str, typer.Argument(metavar="NAME", help="The target.")]

#: How much longer than requested a pause may be before it is taken for an earlier, longer pause, in seconds.
PAUSE_TOLERANCE_SECONDS = 1.0


def pause(
    name: TargetArgument,
    seconds: Annotated[
        float,
        typer.Option(
            "--for",
            metavar="TIME",
            parser=parse_duration_seconds,
            help="The duration, such as 90s, 10m or 2h; one day at most.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Pause a target for all workers for the given time. Running calls are finished; new calls wait in the target's
    queue until their deadline.
    """
    target_pause = ask_admin(lambda admin: admin.pause(name, seconds), as_json=as_json)
    if as_json:
        print_json(target_pause)
        return
    remaining_ms = (target_pause.paused_until or target_pause.now) - target_pause.now
    print_stdout(f"paused   {escape_for_terminal(target_pause.target)} for {duration(remaining_ms)}")
    if remaining_ms / 1000 > seconds + PAUSE_TOLERANCE_SECONDS:
        print_stderr(
            "note     it was already paused for longer, by its provider or by an administrator: `resume` ends that too"
        )
    print_stderr(f"next     quintain target resume {escape_for_terminal(target_pause.target)}")


def resume(name: TargetArgument, as_json: AsJson = False) -> None:
    """End a target's pause, also one that its provider requested. The provider's next answer may request it again."""
    target_pause = ask_admin(lambda admin: admin.resume(name), as_json=as_json)
    if as_json:
        print_json(target_pause)
        return
    seconds = DEFAULT_TIMINGS.heartbeat_seconds
    print_stdout(f"resumed  {escape_for_terminal(target_pause.target)}: workers get it within {seconds:.0f} s")
    print_stderr("next     quintain status")


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
            print_stdout(escape_for_terminal(_outcome_line(worker, worker_list.now)))
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


def verify(as_json: AsJson = False) -> None:
    """Recompute every counter of the ledger from its calls. Exit 0 if all of them match, 1 if not."""
    verdict = run_command(_verify(ledger_url(read_settings(environment()))), as_json=as_json)
    findings = [{"rule": finding.rule, "facts": [str(fact) for fact in finding.facts]} for finding in verdict.findings]
    if as_json:
        print_json({"sessions": verdict.sessions, "calls": verdict.calls, "findings": findings})
    else:
        for finding in verdict.findings:
            print_stdout(f"broken   {finding.rule}: {' '.join(map(str, finding.facts))}")
        state = "clean" if not findings else f"{len(findings)} broken"
        print_stdout(f"ledger   {verdict.sessions} sessions, {verdict.calls} calls: {state}")
    raise typer.Exit(EXIT_ERRORS if findings else 0)


def export(
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only calls of this session, such as that of a run, and its children."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the calls, which are JSON in any case.")] = False,
) -> None:
    """Write every call as a line of JSON to standard output. Example: ``quintain ledger export > calls.jsonl``."""
    call_count = run_command(_export(ledger_url(read_settings(environment())), session), as_json=as_json)
    if not as_json:
        print_stderr(f"ledger   {call_count} calls")


def prune(
    before: Annotated[
        datetime, typer.Option(help="Delete sessions in which nothing has happened since this time (UTC).")
    ],
    delete: Annotated[bool, typer.Option("--delete", help="Delete them; without it they are only counted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Count, or delete, old sessions that are closed or expired, with their children and calls.

    Example: ``quintain ledger prune --before 2026-01-01``. A session is deleted whole or not at all. An SQLite ledger
    can only be pruned while its metadata service is stopped; QUINTAIN_RETENTION_DAYS lets the service do it.
    """
    before_ms = int(before.replace(tzinfo=UTC).timestamp() * 1000)
    url = ledger_url(read_settings(environment()))
    report = run_command(_delete_old(url, before_ms) if delete else _count_old(url, before_ms), as_json=as_json)
    if as_json:
        print_json({"deleted": delete, "sessions": report.sessions, "calls": report.calls})
    else:
        done = "deleted" if delete else "would be deleted: repeat with --delete"
        print_stdout(f"ledger   {report.sessions} sessions, {report.calls} calls: {done}")


def release(
    session_id: Annotated[str, typer.Argument(metavar="SESSION", help="The session that holds it, as of a run.")],
    billed_usd: Annotated[
        float, typer.Option("--billed-usd", min=0, help="What the vendor billed for these tries in all, in US dollars.")
    ],
    as_json: AsJson = False,
) -> None:
    """Release what a session and its children hold for tries whose bill was not known, by the vendor's bill.

    What was billed counts as spent, and the rest is free again. Attempts of these calls that report later change
    nothing. An SQLite ledger can only be changed while its metadata service is stopped.
    """
    freed = run_command(_release(ledger_url(read_settings(environment())), session_id, billed_usd), as_json=as_json)
    if as_json:
        print_json({"sessionId": session_id, "billedUsd": billed_usd, "freedUsd": to_dollars(freed)})
    else:
        print_stdout(f"ledger   {dollars_text(picodollars(billed_usd))} billed, {dollars_text(freed)} free again")


async def _release(url: str, session_id: str, billed_usd: float) -> int:
    async with existing_ledger(url) as ledger:
        return await ledger.transact(lambda _: release_held(session_id, picodollars(billed_usd)))


@contextlib.asynccontextmanager
async def existing_ledger(url: str) -> AsyncIterator[Ledger]:
    """Open a ledger to change it; one that is not there is not created."""
    async with open_snapshot(url):
        pass
    ledger = await open_ledger(url)
    try:
        yield ledger
    finally:
        await ledger.close()


async def _count_old(url: str, before: int) -> PruneReport:
    report = PruneReport()
    async with open_snapshot(url) as snapshot:
        async for family, calls in find_old(lambda make: snapshot.read(make()), int(time.time() * 1000), before):
            report.sessions, report.calls = report.sessions + len(family), report.calls + calls
    return report


async def _delete_old(url: str, before: int) -> PruneReport:
    async with existing_ledger(url) as ledger:
        return await delete_old(ledger, before)


async def _verify(url: str) -> AuditReport:
    async with open_snapshot(url) as snapshot:
        return await snapshot.read(verify_counters())


async def _export(url: str, session_id: str | None) -> int:
    call_count, cursor = 0, ("", "")
    async with open_snapshot(url) as snapshot:
        while page := await snapshot.read(export_page(cursor, session_id=session_id)):
            sys.stdout.writelines(f"{call.to_wire().decode()}\n" for call in page)
            call_count, cursor = call_count + len(page), (page[-1].session_id, page[-1].request_id)
    return call_count
