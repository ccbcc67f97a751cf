"""``quintain compare``: two runs of the same cases, and whether more than chance is between them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from quintain_cli.run_output import show_sheet
from quintain_cli.screen import BELOW_THRESHOLD, OK, out, print_json, run_command
from quintain_runner import (
    Comparison,
    compare_runs,
    comparison_lines,
    comparison_sheets,
    plain,
    read_report,
    verdict_of,
)


def compare(
    before: Annotated[Path, typer.Argument(metavar="RUN", help="The earlier run's results folder.")],
    after: Annotated[Path, typer.Argument(metavar="RUN", help="The later run's.")],
    fail_on_regression: Annotated[
        bool, typer.Option("--fail-on-regression", help="Exit 3 where a target is significantly worse.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Compare runs of other datasets or graders too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the comparison, as JSON.")] = False,
) -> None:
    """Compare two runs case by case: the change, its interval, its p-value, and which cases flipped.

    Exit 0, or, where --fail-on-regression asks for it, 3 when a target is significantly worse.
    """
    comparison = run_command(_compare(before, after, force=force), as_json=as_json)
    code = BELOW_THRESHOLD if fail_on_regression and comparison.regressed else OK
    if as_json:
        wire = comparison.model_dump(by_alias=True, exclude_none=True, mode="json")
        print_json({**wire, "verdict": verdict_of(comparison), "exitCode": code})
    else:
        for sheet in comparison_sheets(comparison):
            show_sheet(sheet)
        for line in (*comparison_lines(comparison), f"exit {code}: {verdict_of(comparison)}. {_next(after)}"):
            out().print(plain(line, longest=1000), markup=False, soft_wrap=True)
    raise typer.Exit(code)


def _next(after: Path) -> str:
    return f"The later run by itself: quintain report {shlex.quote(str(after))}"


async def _compare(before: Path, after: Path, *, force: bool) -> Comparison:
    return compare_runs(read_report(before), read_report(after), force=force)
