"""What a run shows when it has ended, and the files that a CI job or a spreadsheet reads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError
from quintain_cli.screen import out
from quintain_runner import (
    RunReport,
    Sheet,
    cost_line,
    last_line,
    note,
    plain,
    sheets_of,
    table_of,
    write_csv,
    write_junit,
    write_markdown,
)

#: No table in a log needs more columns of characters.
_WIDEST = 400

#: Where GitHub's runner takes a job's summary from; what is written there before stays.
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"

Junit = Annotated[Path | None, typer.Option(help="Write JUnit XML here: a suite per target, a case per row.")]
Markdown = Annotated[
    Path | None, typer.Option(help="Write the tables and what did not pass here; $GITHUB_STEP_SUMMARY is added to.")
]
Csv = Annotated[Path | None, typer.Option(help="Write a line per row here, for a spreadsheet.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """The files that were asked for."""

    junit: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None

    def check(self) -> None:
        """Refuse what could not be written before the first call is made. Raises `ConfigError`."""
        for option, path in self._named():
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
            append = str(self.markdown) == env.get(STEP_SUMMARY)
            write_markdown(self.markdown, report, command, append=append)
        if self.csv is not None:
            write_csv(self.csv, report)

    def _named(self) -> Iterator[tuple[str, Path]]:
        for option, path in (("junit", self.junit), ("markdown", self.markdown), ("csv", self.csv)):
            if path is not None:
                yield option, path


def show(report: RunReport, command: str) -> None:
    """The closing tables, the cost, and the last line; ``command`` is what resumes the run."""
    for sheet in sheets_of(report):
        show_sheet(sheet)
    for line in (cost_line(report.cost), note(report.summary), last_line(report.summary, command)):
        if line is not None:
            out().print(line, markup=False, soft_wrap=True)


def show_sheet(sheet: Sheet) -> None:
    """A table, and its notes beneath it. Where no terminal sets its width it is as wide as it takes."""
    console, table = out(), table_of(sheet)
    if not console.is_terminal:
        wanted = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
        console.width = max(console.width, wanted)
    console.print(table)
    for line in sheet.notes:
        console.print(plain(line), markup=False, soft_wrap=True)


def told(report: RunReport) -> dict[str, object]:
    """A report for programs: the totals, what they mean, and the cost."""
    cost = None if report.cost is None else report.cost.model_dump(by_alias=True, exclude_none=True, mode="json")
    statistics = report.analysis.model_dump(by_alias=True, exclude_none=True, mode="json")
    return {**report.summary.to_wire(), "statistics": statistics, "cost": cost}
