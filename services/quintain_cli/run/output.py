"""The tables that a run prints at its end, and the JUnit, Markdown and CSV files that it writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError
from quintain_cli.console import stdout_console
from quintain_runner import (
    RunReport,
    TextTable,
    cost_line,
    exit_line,
    plain_line,
    rich_table,
    run_tables,
    unaccounted_calls_note,
    write_csv,
    write_junit,
    write_markdown,
)

#: No table in a log needs more columns of characters.
_MAX_TABLE_WIDTH = 400

#: Where GitHub's runner takes a job's summary from; what is written there before stays.
STEP_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"

JunitOption = Annotated[Path | None, typer.Option(help="Write JUnit XML here: a suite per target, a case per row.")]
MarkdownOption = Annotated[
    Path | None, typer.Option(help="Write the tables and what did not pass here; $GITHUB_STEP_SUMMARY is added to.")
]
CsvOption = Annotated[Path | None, typer.Option(help="Write a line per row here, for a spreadsheet.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """The files that were asked for."""

    junit: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None

    def check_writable(self) -> None:
        """Refuse what could not be written before the first call is made. Raises `ConfigError`."""
        for option, path in self._requested():
            if path.is_dir():
                raise ConfigError(f"--{option} {path}: it is a folder; name a file")
            folder = path.absolute().parent
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # Tried: what a folder's mode allows is not what a file system does.
                tempfile.TemporaryFile(dir=folder).close()
            except OSError as error:
                raise ConfigError(
                    f"--{option} {path}: its folder cannot be written to ({error.strerror}); name another file"
                ) from None

    def write(self, report: RunReport, command: str, env: Mapping[str, str]) -> None:
        """Write them. Raises `QuintainError` where the disk refuses one."""
        if self.junit is not None:
            write_junit(self.junit, report)
        if self.markdown is not None:
            # The job's own page: other steps write there too.
            append = str(self.markdown) == env.get(STEP_SUMMARY_VARIABLE)
            write_markdown(self.markdown, report, command, append=append)
        if self.csv is not None:
            write_csv(self.csv, report)

    def _requested(self) -> Iterator[tuple[str, Path]]:
        for option, path in (("junit", self.junit), ("markdown", self.markdown), ("csv", self.csv)):
            if path is not None:
                yield option, path


def print_report(report: RunReport, command: str) -> None:
    """The closing tables, the cost, and the last line; ``command`` is what resumes the run."""
    for table in run_tables(report):
        print_table(table)
    for line in (cost_line(report.cost), unaccounted_calls_note(report.summary), exit_line(report.summary, command)):
        if line is not None:
            stdout_console().print(line, markup=False, soft_wrap=True)


def print_table(text_table: TextTable) -> None:
    """A table, and its notes beneath it. Where no terminal sets its width it is as wide as it takes."""
    console, table = stdout_console(), rich_table(text_table)
    if not console.is_terminal:
        table_width = console.measure(table, options=console.options.update(max_width=_MAX_TABLE_WIDTH)).maximum
        console.width = max(console.width, table_width)
    console.print(table)
    for line in text_table.notes:
        console.print(plain_line(line), markup=False, soft_wrap=True)


def report_to_json(report: RunReport) -> dict[str, object]:
    """A report for programs: the totals, what they mean, and the cost."""
    cost = None if report.cost is None else report.cost.model_dump(by_alias=True, exclude_none=True, mode="json")
    statistics = report.analysis.model_dump(by_alias=True, exclude_none=True, mode="json")
    return {**report.summary.to_wire(), "statistics": statistics, "cost": cost}
