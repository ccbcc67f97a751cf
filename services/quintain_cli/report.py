"""``quintain report``: a run that ended, shown again, and written for a CI job or a spreadsheet."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from quintain.settings import environment
from quintain_cli.run_output import Csv, Junit, Markdown, OutputFiles, show, told
from quintain_cli.screen import print_json, run_command
from quintain_runner import RunReport, read_report


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A results folder, such as runs/eval.")],
    junit: Junit = None,
    markdown: Markdown = None,
    csv: Csv = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the totals and statistics, as JSON.")] = False,
) -> None:
    """Show a run again, and write it as JUnit, Markdown or CSV. No call is made; exit 0 whatever the run's code was."""
    files = OutputFiles(junit=junit, markdown=markdown, csv=csv)
    said = run_command(_read(folder, files), as_json=as_json)
    if as_json:
        print_json(told(said))
    else:
        show(said, command_of(said))


def command_of(report: RunReport) -> str:
    """What takes this run up again."""
    return shlex.join(["quintain", "run", report.run.configuration.evaluation, "--output", str(report.folder)])


async def _read(folder: Path, files: OutputFiles) -> RunReport:
    files.check()
    said = read_report(folder)
    files.write(said, command_of(said), environment())
    return said
