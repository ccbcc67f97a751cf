"""Writes a run as CSV: one line for each row and two columns for each grader, with spreadsheet formulas escaped."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from quintain_runner.escaping import csv_cell
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.atomic_file import atomic_write
from quintain_runner.results.row import Row

_LEADING_COLUMNS = ("repeat", "status", "score", "pass")
_TRAILING_COLUMNS = ("calls", "input_tokens", "output_tokens", "duration_ms", "error_code", "error", "output")

Cell = str | int | float | None


def write_csv(path: Path, report: RunReport) -> None:
    """Write the rows of a report as CSV, atomically, in UTF-8 with a byte order mark, which spreadsheets need.

    Raises `QuintainError` if the file cannot be written.
    """
    columns, rows = flat_rows(report)
    with atomic_write(path, mode=0o666) as file:
        file.write(codecs.BOM_UTF8)
        writer = csv.writer(codecs.getwriter("utf-8")(file))
        writer.writerow([csv_cell(name) for name in columns])
        for row in rows:
            writer.writerow([csv_cell(cell) if isinstance(cell, str) else cell for cell in row])


def flat_rows(report: RunReport) -> tuple[list[str], Iterator[list[Cell]]]:
    """The columns of a report's rows, and the cells of each row, read as they are needed."""
    graders = list(
        dict.fromkeys(name for statistics in report.analysis.targets.values() for name in statistics.graders)
    )
    has_prompts, has_stale = bool(report.run.configuration.prompts), bool(report.stale_rows)
    columns = ["case_id", "target", *(["prompt"] if has_prompts else []), *_LEADING_COLUMNS]
    columns += [f"{name} {what}" for name in graders for what in ("score", "pass")]
    columns += [*_TRAILING_COLUMNS, *(["stale"] if has_stale else [])]

    def cells() -> Iterator[list[Cell]]:
        for row in report.rows():
            names: list[Cell] = [row.case_id, row.target, *([row.prompt] if has_prompts else [])]
            stale: list[Cell] = ["; ".join(row.stale or ())] if has_stale else []
            yield [*names, *_cells(row, graders), *stale]

    return columns, cells()


def _cells(row: Row, graders: Sequence[str]) -> list[Cell]:
    """The cells of one row after its names, in the order of the columns; ``graders`` are the graders' names."""
    passed = None if row.score is None else int(row.passed)
    cells: list[Cell] = [row.repeat, row.status.value, row.score, passed]
    for name in graders:
        grader = row.graders.get(name)
        cells += (
            [None, None] if grader is None else [grader.score, None if grader.passed is None else int(grader.passed)]
        )
    usage, error = row.token_usage, row.error
    cells += [row.calls, usage.input, usage.output, row.duration_ms]
    return [*cells, *((None, None) if error is None else (error.code, error.error)), row.output]
