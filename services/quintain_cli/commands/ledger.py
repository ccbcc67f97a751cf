"""``quintain ledger verify|export|prune``: reads the ledger beside its metadata service, and deletes old sessions."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from quintain.settings import environment, read_settings
from quintain_cli.console import EXIT_ERRORS, AsJson, print_json, print_stderr, run_command, stdout_console
from quintain_cli.state_dir import ledger_url
from quintain_metadata import (
    AuditReport,
    PruneReport,
    export_page,
    find_old,
    open_ledger,
    open_snapshot,
    verify_counters,
)
from quintain_metadata import prune as delete_old


def verify(as_json: AsJson = False) -> None:
    """Recompute every counter of the ledger from its calls. Exit 0 if all of them match, 1 if not."""
    verdict = run_command(_verify(ledger_url(read_settings(environment()))), as_json=as_json)
    findings = [{"rule": finding.rule, "facts": [str(fact) for fact in finding.facts]} for finding in verdict.findings]
    if as_json:
        print_json({"sessions": verdict.sessions, "calls": verdict.calls, "findings": findings})
    else:
        for finding in verdict.findings:
            stdout_console().print(
                f"broken   {finding.rule}: {' '.join(map(str, finding.facts))}", markup=False, soft_wrap=True
            )
        state = "clean" if not findings else f"{len(findings)} broken"
        stdout_console().print(f"ledger   {verdict.sessions} sessions, {verdict.calls} calls: {state}", markup=False)
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
        stdout_console().print(f"ledger   {report.sessions} sessions, {report.calls} calls: {done}", markup=False)


async def _count_old(url: str, before: int) -> PruneReport:
    report = PruneReport()
    async with open_snapshot(url) as snapshot:
        async for family, calls in find_old(lambda make: snapshot.read(make()), int(time.time() * 1000), before):
            report.sessions, report.calls = report.sessions + len(family), report.calls + calls
    return report


async def _delete_old(url: str, before: int) -> PruneReport:
    async with open_snapshot(url):  # a ledger that is not there is not created
        pass
    ledger = await open_ledger(url)
    try:
        return await delete_old(ledger, before)
    finally:
        await ledger.close()


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
