"""The tables that a run prints at its end, and the JUnit, Markdown and CSV files that it writes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError
from quintain_cli.console import format_count, stdout_console
from quintain_runner import (
    RunReport,
    TextTable,
    calls_made_twice_note,
    cost_line,
    exit_line,
    parked_target_notes,
    plain_line,
    rich_table,
    run_tables,
    unaccounted_calls_note,
    unavailable_grader_notes,
    write_csv,
    write_junit,
    write_markdown,
)

#: The maximum width of a table if there is no terminal, in characters.
_MAX_TABLE_WIDTH = 400

#: The variable with the path of a GitHub job's summary; the report is appended to that file.
STEP_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"

JunitOption = Annotated[Path | None, typer.Option(help="Write JUnit XML here: a suite per target, a case per row.")]
MarkdownOption = Annotated[
    Path | None,
    typer.Option(help="Write tables and failed rows as Markdown here; $GITHUB_STEP_SUMMARY is appended to."),
]
CsvOption = Annotated[Path | None, typer.Option(help="Write a CSV line per row here, for a spreadsheet.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """The paths of the report files to write; None for those that were not requested."""

    junit: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None

    def check_writable(self) -> None:
        """Check before the first call that the files can be written. Raises `ConfigError`."""
        for option, path in self._requested():
            if path.is_dir():
                raise ConfigError(f"--{option} {path}: it is a folder; name a file")
            folder = path.absolute().parent
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # Tried by writing, because a folder's mode does not tell whether its file system is writable.
                tempfile.TemporaryFile(dir=folder).close()
            except OSError as error:
                raise ConfigError(
                    f"--{option} {path}: its folder cannot be written to ({error.strerror}); name another file"
                ) from None

    def write(self, report: RunReport, command: str, env: Mapping[str, str]) -> None:
        """Write the requested files. ``command`` is the one that resumes the run. Raises `QuintainError` on failure."""
        if self.junit is not None:
            write_junit(self.junit, report)
        if self.markdown is not None:
            # Other steps of the job write to the summary too.
            append = str(self.markdown) == env.get(STEP_SUMMARY_VARIABLE)
            write_markdown(self.markdown, report, command, append=append)
        if self.csv is not None:
            write_csv(self.csv, report)

    def _requested(self) -> Iterator[tuple[str, Path]]:
        for option, path in (("junit", self.junit), ("markdown", self.markdown), ("csv", self.csv)):
            if path is not None:
                yield option, path


def format_size(cases: int, prompts: Sequence[str], targets: Sequence[str], repeats: int) -> str:
    """The size of an evaluation, such as ``3 cases × 2 targets × 1 repeat``."""
    counts = [(cases, "case"), (len(prompts), "prompt"), (len(targets), "target"), (repeats, "repeat")]
    return " × ".join(format_count(count, what) for count, what in counts if what != "prompt" or count)


def print_report(report: RunReport, command: str) -> None:
    """Print the result tables, the cost and the exit line; ``command`` is the command that resumes the run."""
    for table in run_tables(report):
        print_table(table)
    summary = report.summary
    notes = (
        cost_line(report.cost),
        unaccounted_calls_note(summary),
        calls_made_twice_note(summary),
        *parked_target_notes(summary),
        *unavailable_grader_notes(summary),
    )
    for line in (*notes, exit_line(summary, command)):
        if line is not None:
            stdout_console().print(line, markup=False, soft_wrap=True)


def print_table(text_table: TextTable) -> None:
    """Print a table and its notes; without a terminal the table is as wide as its contents."""
    console, table = stdout_console(), rich_table(text_table)
    if not console.is_terminal:
        table_width = console.measure(table, options=console.options.update(max_width=_MAX_TABLE_WIDTH)).maximum
        console.width = max(console.width, table_width)
    console.print(table)
    for line in text_table.notes:
        console.print(plain_line(line), markup=False, soft_wrap=True)


def report_to_json(report: RunReport) -> dict[str, object]:
    """Return a report as a JSON object: totals, statistics and cost."""
    cost = None if report.cost is None else report.cost.model_dump(by_alias=True, exclude_none=True, mode="json")
    statistics = report.analysis.model_dump(by_alias=True, exclude_none=True, mode="json")
    return {**report.summary.to_wire(), "statistics": statistics, "cost": cost}
