"""``quintain report``: shows a finished run again, and writes it for a CI job or a spreadsheet."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from quintain.settings import environment
from quintain_cli.console import print_json, run_command
from quintain_cli.run.output import CsvOption, JunitOption, MarkdownOption, OutputFiles, print_report, report_to_json
from quintain_runner import RunReport, read_report


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A results folder, such as runs/eval.")],
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    csv: CsvOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the totals and statistics, as JSON.")] = False,
) -> None:
    """Show the results of a run, also as JUnit, Markdown or CSV. No call is made.

    The exit code is 0, whatever the exit code of the run was.
    """
    files = OutputFiles(junit=junit, markdown=markdown, csv=csv)
    run_report = run_command(_read_and_write(folder, files), as_json=as_json)
    if as_json:
        print_json(report_to_json(run_report))
    else:
        print_report(run_report, resume_command(run_report))


def resume_command(run_report: RunReport) -> str:
    """Return the command that resumes this run."""
    return shlex.join(["quintain", "run", run_report.run.configuration.evaluation, "--output", str(run_report.folder)])


async def _read_and_write(folder: Path, files: OutputFiles) -> RunReport:
    files.check_writable()
    run_report = read_report(folder)
    files.write(run_report, resume_command(run_report), environment())
    return run_report
