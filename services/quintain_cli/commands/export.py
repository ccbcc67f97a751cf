"""``quintain export``: writes the rows of a run in the format of another tool."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quintain_cli.console import AsJson, print_json, print_stderr, run_command, stdout_console
from quintain_runner.report.exports import write_agentv_run, write_inspect_logs
from quintain_runner.report.report_files import write_csv
from quintain_runner.report.run_report import read_report


class ExportFormat(StrEnum):
    """The formats of ``quintain export``."""

    INSPECT = "inspect"
    AGENTV = "agentv"
    CSV = "csv"


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A results folder, such as runs/eval.")],
    to: Annotated[
        ExportFormat,
        typer.Option(help="inspect: a log for each target; agentv: a run of AgentV 4.42; csv: a line for each row."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="The folder of the logs or runs, or the CSV file; default: in the results folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the rows of a run in the format of another tool. No call is made.

    Prints the path of each file.
    """
    paths = run_command(_export(folder, to, output), as_json=as_json)
    if as_json:
        print_json({"files": [str(path) for path in paths]})
        return
    for path in paths:
        stdout_console().print(str(path), markup=False, soft_wrap=True)
    if to is ExportFormat.INSPECT:
        print_stderr(f"next   inspect view --log-dir {output or folder / 'inspect'}")
    if to is ExportFormat.AGENTV:
        print_stderr(f"next   agentv results summary {paths[0].parent}")


async def _export(folder: Path, to: ExportFormat, output: Path | None) -> list[Path]:
    report = read_report(folder)
    if to is ExportFormat.INSPECT:
        return write_inspect_logs(output or folder / "inspect", report)
    if to is ExportFormat.AGENTV:
        return write_agentv_run(output or folder / "agentv", report)
    path = output or folder / "rows.csv"
    write_csv(path, report)
    return [path]
