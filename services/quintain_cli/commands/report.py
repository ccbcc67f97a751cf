"""``quintain report``: shows finished runs again, and writes them for a reader, a CI job or a spreadsheet."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError
from quintain.settings import environment
from quintain_cli.console import AsJson, print_json, run_command
from quintain_cli.run_output import (
    CsvOption,
    HtmlOption,
    JunitOption,
    MarkdownOption,
    OutputFiles,
    print_report,
    report_to_json,
)
from quintain_runner.report.run_report import RunReport, read_report
from quintain_view.html_report import write_html_report
from quintain_view.trajectory_files import has_only_trajectories


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Results folders, such as runs/eval.")],
    html: HtmlOption = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    csv: CsvOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the results of a run, also as HTML, JUnit, Markdown or CSV.

    No call is made. The exit code is 0, whatever the exit code of the run was. With several runs, --html writes them
    into one file, and the other options are of one run only.
    """
    files = OutputFiles(junit=junit, markdown=markdown, csv=csv, html=html)
    for run_report in run_command(_read_and_write(folders, files), as_json=as_json):
        if as_json:
            print_json(report_to_json(run_report))
        else:
            print_report(run_report, resume_command(run_report))


def resume_command(run_report: RunReport) -> str:
    """Return the command that resumes this run."""
    return shlex.join(["quintain", "run", run_report.run.configuration.evaluation, "--output", str(run_report.folder)])


async def _read_and_write(folders: list[Path], files: OutputFiles) -> list[RunReport]:
    if len(folders) > 1 and not files.is_html_only:
        raise ConfigError("--junit, --markdown and --csv are of one run: give one folder, or --html for several")
    files.check_writable()
    if files.html is None or not files.is_html_only:
        reports = [read_report(folder) for folder in folders]
        files.write(reports, resume_command(reports[0]), environment())
        return reports
    # A folder with trajectories only has nothing but its pages.
    reports = [read_report(folder) for folder in folders if not has_only_trajectories(folder)]
    write_html_report(files.html, folders)
    return reports
