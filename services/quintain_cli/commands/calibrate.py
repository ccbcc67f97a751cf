"""``quintain calibrate``: runs the judges of an evaluation over labeled answers, and compares them with the labels."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from quintain.fleet.tables import format_count
from quintain_cli.commands.run import InDoubtOption, InDoubtPolicy
from quintain_cli.console import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    AsJson,
    RunCostOption,
    print_json,
    print_stderr,
    print_stdout,
    run_command,
)
from quintain_cli.run_output import ConcurrencyOption, ConfigOption, OutputFiles, Terminal, print_table, report_to_json
from quintain_runner.calibration import Calibration, CalibrationOptions
from quintain_runner.calibration import calibrate as run_calibration
from quintain_runner.engine.run_settings import DEFAULT_CONCURRENCY, RunOptions
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.plan.labeled_answers import Half
from quintain_runner.report.judge_tables import agreement_table
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.summary import exit_line
from quintain_runner.report.text_table import TextTable
from quintain_runner.results.bill import cost_line
from quintain_runner.statistics.analysis import format_share_difference, p_note
from quintain_runner.untrusted import plain_line

#: So many disagreements are printed.
_SHOWN_DISAGREEMENTS = 10


def calibrate(
    path: Annotated[Path, typer.Argument(metavar="EVAL.YAML", help="The evaluation file.")],
    run: Annotated[
        Path | None,
        typer.Option(help="The labeled run, where the file names no labels; by default runs/<name of the file>."),
    ] = None,
    half: Annotated[
        Half | None,
        typer.Option(help="Ask the judges only about this half of the cases; by default about both."),
    ] = None,
    seed: Annotated[int, typer.Option(help="How cases are split into halves.")] = 0,
    max_calls: Annotated[int | None, typer.Option(min=0, help="The call budget of the judges.")] = None,
    max_cost_usd: RunCostOption = None,
    in_doubt: InDoubtOption = InDoubtPolicy.KEEP,
    output: Annotated[
        Path | None, typer.Option(help="The folder of the verdicts; by default runs/<name of the file>-calibration.")
    ] = None,
    config: ConfigOption = None,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    as_json: AsJson = False,
) -> None:
    """Compare the judges of an evaluation with labels. Only judges are called, and only about labeled answers.

    The labels are those of the file that labels in the evaluation file names, else those of the random queue of
    quintain view. Cases are split into two halves: by the held-out one judges are compared with each other, of the
    other one disagreements are shown. The same command again asks only what is missing. Exit codes: 0 every judge gave
    its verdicts, 1 some did not, 2 usage, 4 budget spent.
    """
    command = shlex.join(["quintain", *sys.argv[1:]])
    options = RunOptions(
        path=path,
        output=output or Path("runs") / f"{path.stem}-calibration",
        config=config,
        max_calls=max_calls,
        max_cost_usd=max_cost_usd,
        concurrency=concurrency,
        rerun_policy=RerunPolicy(rerun_in_doubt=in_doubt is InDoubtPolicy.RETRY, answers_only=True, given_answers=True),
        command=command,
    )
    labeled_run = run or Path("runs") / path.stem
    calibration_options = CalibrationOptions(run=options, labeled_run=labeled_run, half=half, seed=seed)
    listener = Terminal(options, OutputFiles(), quiet=as_json)
    try:
        result, report = run_command(run_calibration(calibration_options, listener), as_json=as_json, service="run")
    except typer.Exit as exit_request:
        if exit_request.exit_code == EXIT_INTERRUPTED:
            print_stderr(f"next   the verdicts given are kept; this command resumes: {command}")
        raise
    code = int(report.summary.exit_code)
    if as_json:
        print_json({**result.model_dump(by_alias=True, mode="json"), "run": report_to_json(report), "exitCode": code})
    else:
        _print_calibration(result, report, command)
    raise typer.Exit(code)


def _print_calibration(result: Calibration, report: RunReport, command: str) -> None:
    for half, judges in result.halves.items():
        print_table(agreement_table(f"{half} half: judges and labels", judges))
    if result.comparisons:
        print_table(_comparison_table(result))
    for line in (*_lines(result), cost_line(report.bill), _exit_text(result, report, command)):
        if line is not None:
            print_stdout(plain_line(line, max_length=1_000))


def _comparison_table(result: Calibration) -> TextTable:
    rows = []
    for one in result.comparisons:
        cells = ("-",) * 4 if one.difference is None else format_share_difference(one.difference)
        rows.append((one.first, one.second, f"{one.labels:,}", *cells))
    differences = [one.difference for one in result.comparisons]
    pairs = len(result.comparisons)
    adjusted = f", adjusted for {pairs} pairs of judges" if pairs > 1 else ""
    return TextTable(
        "held-out half: how much more often the first judge agrees with the labels",
        ("first", "second", "labels", "difference", "95 %", "better / worse", "p"),
        rows,
        name_columns=2,
        notes=[p_note(differences, differences, adjusted)],
    )


def _lines(result: Calibration) -> Iterator[str]:
    yield f"labels   {result.labels:,} of {result.source}; halves by seed {result.seed}"
    for reason, left in result.left_out.items():
        others = ", …" if left.labels > len(left.cases) else ""
        yield f"left out {format_count(left.labels, 'label')} {reason} ({', '.join(left.cases)}{others})"
    for judge, count in result.without_verdict.items():
        yield f"missing  {judge} gave no verdict, or a tie, on {format_count(count, 'answer')}"
    for one in result.disagreements[:_SHOWN_DISAGREEMENTS]:
        said, labeled = ("passes" if passed else "fails" for passed in (one.verdict, one.label))
        yield f"differs  {one.case_id} · {one.column}: {one.judge} says {said}, the label {labeled}"
    if (more := len(result.disagreements) - _SHOWN_DISAGREEMENTS) > 0:
        yield f"differs  and {more} more"


def _exit_text(result: Calibration, report: RunReport, command: str) -> str:
    code = int(report.summary.exit_code)
    if code != EXIT_OK:
        return exit_line(report.summary, command)
    return f"exit 0: every judge gave its verdicts. To read them: quintain view {shlex.quote(str(report.folder))}"
