"""``quintain doctor``: what of the broker and the ledger is not as Quintain needs it, and what mends it."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from quintain.settings import environment, read_settings
from quintain_cli.examination import Examination, examine
from quintain_cli.screen import ERRORS, OK, out, plain, print_json, run_command, tell
from quintain_cli.status import broker_url


def doctor(
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for the broker to answer.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print only what was found, as JSON.")] = False,
) -> None:
    """Look at the broker, at what is declared there, and at the ledger; change nothing.

    Reads QUINTAIN_BROKER_URL and QUINTAIN_LEDGER_URL.

    Exit codes: 0 nothing fails, 1 something is to be mended.
    """
    found = run_command(_examined(timeout), as_json=as_json)
    code = ERRORS if found.failed else OK
    if as_json:
        print_json({"exitCode": code, **json.loads(found.to_wire())})
    else:
        _show(found)
    raise typer.Exit(code)


async def _examined(timeout: float) -> Examination:
    settings = read_settings(environment())
    return await examine(settings, broker_url(settings), timeout_seconds=timeout)


def _show(found: Examination) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("", "what", "says", "mend"):
        table.add_column(name, overflow="fold")
    for line in found.lines:
        table.add_row(*(Text(plain(cell)) for cell in (line.verdict, line.what, line.says, line.mend or "")))
    out().print(table)
    failed = sum(line.verdict == "fail" for line in found.lines)
    tell(f"next     mend {failed} of these, then quintain doctor" if failed else "next     quintain status")
