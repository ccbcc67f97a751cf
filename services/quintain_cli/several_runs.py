"""Runs one or several evaluations in a command; several have one budget, one table, one report and one exit code."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from quintain.contracts.money import LEAST_COST_USD
from quintain.errors import ConfigError
from quintain.settings import environment, read_settings
from quintain_cli.console import exit_with_error, print_json, print_stderr, print_stdout
from quintain_cli.run_output import (
    OutputFiles,
    Terminal,
    print_table,
    report_to_json,
    run_and_report,
    run_resumable,
    show_plan,
)
from quintain_runner.engine.run_settings import RunOptions, inspect_evaluation
from quintain_runner.evaluation import execute_run
from quintain_runner.report.run_file import FILE_NAME, read_run
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.summary import ExitCode, exit_line
from quintain_runner.report.text_table import TextTable
from quintain_runner.statistics.analysis import format_score

#: The exit code of a command is the first of these that an evaluation has.
_WORST_FIRST = (ExitCode.BUDGET_SPENT, ExitCode.ERRORS, ExitCode.BELOW_THRESHOLD, ExitCode.PASSED)


def run_evaluations(
    paths: Sequence[Path], options: RunOptions, files: OutputFiles, *, is_dry: bool, as_json: bool
) -> int:
    """Run these evaluation files with the same options, or plan the only one if ``is_dry``; return the exit code.

    Of several each has the folder of its name, in ``options.output`` or in ``runs``.
    """
    if len(paths) == 1:
        return show_plan(options, as_json=as_json) if is_dry else run_and_report(options, files, as_json=as_json)
    every = [replace(options, path=path, output=(options.output or Path("runs")) / path.stem) for path in paths]
    single = {"--plan": is_dry, "--csv": files.csv, "--baseline": options.baseline, "--replay": options.replay}
    if given := [name for name, value in single.items() if value]:
        exit_with_error(ConfigError(f"{', '.join(given)}: of one evaluation only; name one file"), as_json=as_json)
    first: dict[Path, Path] = {}
    for one in every:
        if (other := first.setdefault(one.folder, one.path)) is not one.path:
            error = ConfigError(f"{other} and {one.path} would both write to {one.folder}; give one another name")
            exit_with_error(error, as_json=as_json)
    reports = run_resumable(_execute_all(every, files, quiet=as_json), options.command, as_json=as_json)
    codes = [report.summary.exit_code for report in reports]
    code = next(code for code in _WORST_FIRST if code in codes)
    if as_json:
        named = [
            {"evaluation": str(one.path), "folder": str(one.folder), **report_to_json(report)}
            for one, report in zip(every, reports, strict=True)
        ]
        print_json({"exitCode": int(code), "evaluations": named})
        return int(code)
    print_table(_table(reports))
    for one, report in zip(every, reports, strict=True):
        command = shlex.join(["quintain", "run", str(one.path), "--output", str(one.folder)])
        print_stdout(f"{one.path}: {exit_line(report.summary, command)}")
    print_stdout(f"exit {int(code)}: {codes.count(ExitCode.PASSED)} of {len(codes)} evaluations passed")
    return int(code)


async def _execute_all(every: Sequence[RunOptions], files: OutputFiles, *, quiet: bool) -> list[RunReport]:
    """Run them one after another, each with what is left of the budget. Raises `ConfigError` before the first call with
    the mistakes of all."""
    files.check_writable()
    problems = [problem for one in every for problem in await _problems_of(one)]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    reports: list[RunReport] = []
    calls, usd = 0, 0.0
    for number, one in enumerate(every, start=1):
        # A run's budget counts its earlier commands, and the command's budget does not.
        earlier_calls, earlier_usd = (0, 0.0) if one.is_fresh else _spent(one.folder)
        left = one
        if one.max_calls is not None:
            left = replace(left, max_calls=earlier_calls + max(0, one.max_calls - calls))
        if isinstance(one.max_cost_usd, float):
            left = replace(left, max_cost_usd=max(LEAST_COST_USD, earlier_usd + one.max_cost_usd - usd))
        if not quiet:
            print_stderr(f"file     {one.path}, {number} of {len(every)}")
        reports.append(await execute_run(left, Terminal(left, OutputFiles(), quiet=quiet)))
        spent_calls, spent_usd = _spent(one.folder)
        calls, usd = calls + spent_calls - earlier_calls, usd + spent_usd - earlier_usd
    files.write_all(reports, every[0].command, environment())
    return reports


async def _problems_of(options: RunOptions) -> list[str]:
    found = await inspect_evaluation(options, read_settings(environment()))
    return found.problems


def _spent(folder: Path) -> tuple[int, float]:
    """The calls that a run made, and the most that they cost in US dollars."""
    if not (folder / FILE_NAME).exists():
        return 0, 0.0
    record = read_run(folder)
    return record.totals.calls, 0.0 if record.bill is None else record.bill.total.cost.most_usd


def _table(reports: Sequence[RunReport]) -> TextTable:
    return TextTable(
        f"{len(reports)} evaluations",
        ("evaluation", "trials", "passed", "errors", "mean score", "calls", "cost", "exit"),
        [tuple(_cells(report)) for report in reports],
    )


def _cells(report: RunReport) -> Iterator[str]:
    total = report.summary.total
    yield report.run.name
    yield f"{total.trials:,}"
    yield f"{total.passed:,}/{total.graded:,}"
    yield f"{total.errors + total.in_doubt:,}"
    yield format_score(total.mean_score)
    yield f"{total.calls:,}"
    yield "-" if report.bill is None or not report.bill.is_priced else report.bill.text
    yield str(int(report.summary.exit_code))
