"""``quintain compare``: compares two runs on the same cases, with significance tests."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from quintain_cli.console import EXIT_BELOW_THRESHOLD, EXIT_OK, AsJson, print_json, run_command, stdout_console
from quintain_cli.run_output import print_table
from quintain_runner.report.comparison import Comparison, compare_runs, comparison_lines, comparison_tables, conclusion
from quintain_runner.report.run_report import read_report
from quintain_runner.untrusted import plain_line


def compare(
    before: Annotated[Path, typer.Argument(metavar="RUN", help="The results folder of the earlier run.")],
    after: Annotated[Path, typer.Argument(metavar="RUN", help="The results folder of the later run.")],
    fail_on_regression: Annotated[
        bool, typer.Option("--fail-on-regression", help="Exit 3 if a target is significantly worse.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Compare even if datasets or graders differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two runs case by case, with significance tests.

    Shows each target's difference with its confidence interval and p-value, and the cases that flipped. Exit code 0;
    with --fail-on-regression 3 if a target is significantly worse in the later run.
    """
    comparison = run_command(_compare(before, after, force=force), as_json=as_json)
    code = EXIT_BELOW_THRESHOLD if fail_on_regression and comparison.regressed_targets else EXIT_OK
    if as_json:
        fields = comparison.model_dump(by_alias=True, exclude_none=True, mode="json")
        print_json({**fields, "verdict": conclusion(comparison), "exitCode": code})
    else:
        for table in comparison_tables(comparison):
            print_table(table)
        for line in (*comparison_lines(comparison), f"exit {code}: {conclusion(comparison)}. {_next_command(after)}"):
            stdout_console().print(plain_line(line, max_length=1000), markup=False, soft_wrap=True)
    raise typer.Exit(code)


def _next_command(after: Path) -> str:
    return f"To show the later run: quintain report {shlex.quote(str(after))}"


async def _compare(before: Path, after: Path, *, force: bool) -> Comparison:
    return compare_runs(read_report(before), read_report(after), force=force)
