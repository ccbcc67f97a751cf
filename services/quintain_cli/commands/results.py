"""``quintain report``, ``compare``, ``export`` and ``view``: shows results of runs, and writes them for other tools."""

from __future__ import annotations

import asyncio
import shlex
import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError
from quintain.settings import environment
from quintain_cli.console import (
    EXIT_BELOW_THRESHOLD,
    EXIT_OK,
    AsJson,
    handle_stop_signals,
    print_json,
    print_stderr,
    print_stdout,
    run_command,
)
from quintain_cli.run_output import (
    CsvOption,
    JunitOption,
    MarkdownOption,
    OutputFiles,
    check_writable,
    print_report,
    print_table,
    report_to_json,
)
from quintain_runner.report.comparison import Comparison, compare_runs
from quintain_runner.report.comparison_tables import comparison_lines, comparison_tables, conclusion, flip_lines
from quintain_runner.report.exports import write_agentv_run
from quintain_runner.report.inspect_export import write_inspect_logs
from quintain_runner.report.report_files import write_csv
from quintain_runner.report.run_report import RunReport, read_report
from quintain_runner.untrusted import plain_line
from quintain_view.html_report import write_html_report
from quintain_view.reading import ContentMissing
from quintain_view.server import serve_view
from quintain_view.trajectory_files import has_only_trajectories


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Results folders, such as runs/eval.")],
    html: Annotated[Path | None, typer.Option(help="Write all runs as one HTML file here, to hand on.")] = None,
    case: Annotated[str | None, typer.Option(help="Write only the case of this id into the file of --html.")] = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    csv: CsvOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the results of a run, also as HTML, JUnit, Markdown or CSV.

    No call is made. The exit code is 0, whatever the exit code of the run was. With several runs, --html writes them
    into one file, and the other options are of one run only.
    """
    files = OutputFiles(junit=junit, markdown=markdown, csv=csv)
    for run_report in run_command(_read_and_write(folders, files, html, case), as_json=as_json):
        if as_json:
            print_json(report_to_json(run_report))
        else:
            print_report(run_report, resume_command(run_report))


def resume_command(run_report: RunReport) -> str:
    """Return the command that resumes this run."""
    configuration = run_report.run.configuration
    command = "calibrate" if configuration.is_calibration else "run"
    return shlex.join(["quintain", command, configuration.evaluation, "--output", str(run_report.folder)])


async def _read_and_write(
    folders: list[Path], files: OutputFiles, html: Path | None, case_id: str | None
) -> list[RunReport]:
    if len(folders) > 1 and files.requested:
        raise ConfigError("--junit, --markdown and --csv are of one run: give one folder, or --html for several")
    if case_id is not None and (html is None or files.requested):
        raise ConfigError("--case is of the HTML file: give --html, without --junit, --markdown and --csv")
    files.check_writable()
    if html is None or files.requested:
        reports = [read_report(folder) for folder in folders]
        files.write(reports[0], resume_command(reports[0]), environment())
    else:
        # A folder with trajectories only has nothing but its pages.
        reports = [read_report(folder) for folder in folders if not has_only_trajectories(folder)]
    if html is not None:
        check_writable("html", html)
        try:
            write_html_report(html, folders, case_id)
        except ContentMissing as missing:
            raise ConfigError(f"--case: {missing}") from None
    return reports


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
        end = f"exit {code}: {conclusion(comparison)}. {_next_command(before, after)}"
        for line in (*comparison_lines(comparison), *flip_lines(comparison), end):
            print_stdout(plain_line(line, max_length=1000))
    raise typer.Exit(code)


def _next_command(before: Path, after: Path) -> str:
    return f"To read both: quintain view {shlex.join([str(before), str(after)])}"


async def _compare(before: Path, after: Path, *, force: bool) -> Comparison:
    return compare_runs(read_report(before), read_report(after), force=force)


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
        print_stdout(str(path))
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


#: Where `quintain run` writes results, if nothing else is said.
DEFAULT_FOLDER = Path("runs")


def view(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Results folders, or folders of them; by default runs."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 takes a free one.")] = 0,
    at: Annotated[
        str | None, typer.Option(metavar="QUERY", help="Open at this list or case: what its page shows for this.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser at the address.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON, and open nothing.")] = False,
) -> None:
    """Show runs in a browser, on this machine only.

    Every case with its answers, filters, labels and comparisons. The server answers on 127.0.0.1 only, and only to
    browsers that opened the printed address; it runs until Ctrl-C. Pages of runs that are under way update themselves.
    """
    run_command(
        _serve(folders or [DEFAULT_FOLDER], port, at, open_browser=open_browser and not as_json, as_json=as_json),
        as_json=as_json,
    )


async def _serve(folders: list[Path], port: int, at: str | None, *, open_browser: bool, as_json: bool) -> None:
    for folder in folders:
        if folder != DEFAULT_FOLDER and not folder.exists():
            raise ConfigError(f"{folder}: there is no such folder; `quintain run eval.yaml` makes one in runs")
    async with handle_stop_signals() as stop, serve_view(folders, port=port, at=at) as address:
        if as_json:
            print_json({"url": address})
        else:
            print_stderr(f"view     {address}")
            print_stderr("stop     Ctrl-C")
        if open_browser:
            await asyncio.to_thread(webbrowser.open, address)
        await stop.wait()
