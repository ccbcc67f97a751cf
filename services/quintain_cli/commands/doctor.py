"""``quintain doctor``: checks the broker, its declarations and the ledger, and says how to fix what is wrong."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from quintain.secret_files import secret_file_paths
from quintain.settings import environment, read_settings
from quintain_cli.console import (
    EXIT_ERRORS,
    EXIT_OK,
    escape_for_terminal,
    print_json,
    print_stderr,
    run_command,
    stdout_console,
)
from quintain_cli.fleet.admin_client import fleet_broker_url
from quintain_cli.fleet.broker_management import open_management
from quintain_cli.fleet.doctor_checks import DoctorReport, run_checks


def doctor(
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that each check may take.")] = 5.0,
    management: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask RabbitMQ's management API there, such as http://HOST:15672.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the report, as JSON.")] = False,
) -> None:
    """Check the broker, its exchanges and queues, and the ledger.

    Also checks which services answer, encryption, the largest message, the modes of files with secrets, the free disk
    and a PostgreSQL's settings; with --management alarms, the limits and bindings of queues, feature flags, the rights
    and limits of users, foreign exchanges and queues, and the broker's clock. Nothing is changed. Reads
    QUINTAIN_BROKER_URL, QUINTAIN_LEDGER_URL and QUINTAIN_ADMIN_TOKEN.

    Exit codes: 0 no check failed, 1 a check failed.
    """
    report = run_command(_run_checks(timeout, management), as_json=as_json)
    code = EXIT_ERRORS if report.has_failures else EXIT_OK
    if as_json:
        print_json({"exitCode": code, **json.loads(report.to_wire())})
    else:
        _print_report(report)
    raise typer.Exit(code)


async def _run_checks(timeout: float, management: str | None) -> DoctorReport:
    settings = read_settings(environment())
    url = fleet_broker_url(settings)
    run = partial(run_checks, settings, url, timeout_seconds=timeout, secret_files=secret_file_paths(environment()))
    if management is None:
        return await run()
    return await run(management=open_management(url, management, timeout_seconds=timeout))


def _print_report(report: DoctorReport) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("", "what", "result", "fix"):
        table.add_column(name, overflow="fold")
    for check in report.lines:
        table.add_row(
            *(Text(escape_for_terminal(cell)) for cell in (check.verdict, check.what, check.says, check.mend or ""))
        )
    stdout_console().print(table)
    failed_count = sum(check.verdict == "fail" for check in report.lines)
    print_stderr(
        f"next     fix {failed_count} of these, then quintain doctor" if failed_count else "next     quintain status"
    )
