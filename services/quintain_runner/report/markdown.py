"""Writes a run as a Markdown page, for the summary of a CI job. Untrusted text is shown as code."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from quintain.errors import QuintainError
from quintain_runner.escaping import markdown_code_span
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.summary_text import exit_line, parked_target_notes, unavailable_grader_notes
from quintain_runner.report.tables import TextTable, cost_line, run_tables
from quintain_runner.results.atomic_file import atomic_write
from quintain_runner.results.row import Row, RowStatus

#: The most cases shown that did not pass; the results folder has all of them.
MAX_SHOWN_CASES = 20

#: The most characters of untrusted text in one cell.
_MAX_CELL_CHARACTERS = 160


def write_markdown(path: Path, report: RunReport, command: str, *, append: bool = False) -> None:
    """Write the report as Markdown, atomically, or append it to an existing page, such as the summary of a CI job.

    ``command`` is the command that resumes the run. Raises `QuintainError` if the file cannot be written.
    """
    page = render_markdown(report, command)
    if not append:
        with atomic_write(path, mode=0o666) as file:
            file.write(page.encode())
        return
    try:
        with path.open("a", encoding="utf-8") as summary:
            summary.write(page)
    except OSError as error:
        raise QuintainError(f"{path}: cannot be written ({error.strerror})") from None


def render_markdown(report: RunReport, command: str) -> str:
    """The report as a Markdown page."""
    page = io.StringIO()
    outcome = markdown_code_span(exit_line(report.summary, command), max_length=1000)
    page.write(f"## {markdown_code_span(report.run.name)}\n\n{outcome}\n")
    for note in (*parked_target_notes(report.summary), *unavailable_grader_notes(report.summary)):
        page.write(f"\n{markdown_code_span(note, max_length=1000)}\n")
    for table in run_tables(report):
        page.write(f"\n{''.join(markdown_table_lines(table))}")
    if (cost := cost_line(report.cost)) is not None:
        page.write(f"\n{_escape_markdown(cost)}\n")
    rows = list(islice(_rows_not_passed(report), MAX_SHOWN_CASES + 1))
    if rows:
        cells = [_not_passed_cells(row) for row in rows[:MAX_SHOWN_CASES]]
        page.write(f"\n### Not passed\n\n{''.join(_table_lines(_NOT_PASSED_COLUMNS, cells, 0))}")
    if len(rows) > MAX_SHOWN_CASES:
        page.write(f"\nThe first {MAX_SHOWN_CASES}; every row: {markdown_code_span(str(report.summary.results))}\n")
    return page.getvalue()


def markdown_table_lines(table: TextTable) -> Iterator[str]:
    """A table as Markdown lines: its title as a heading, the table and its notes."""
    yield f"### {_escape_markdown(table.title)}\n\n"
    rows = [*table.rows, table.total] if table.total else table.rows
    shown = [
        tuple(
            markdown_code_span(cell) if i < table.name_columns else _escape_markdown(cell) for i, cell in enumerate(row)
        )
        for row in rows
    ]
    yield from _table_lines(table.columns, shown, table.name_columns)
    for note in table.notes:
        yield f"\n{_escape_markdown(note)}\n"


_NOT_PASSED_COLUMNS = ("case", "target", "score", "why", "answer")


def _not_passed_cells(row: Row) -> tuple[str, ...]:
    """The cells of a row that did not pass."""
    case = row.case_id if row.repeat == 1 else f"{row.case_id} #{row.repeat}"
    score = "-" if row.score is None else f"{row.score:.3f}"
    if row.error is not None:
        why = f"{row.error.code}: {row.error.error}"
    else:
        failed = ((name, grader) for name, grader in row.graders.items() if not grader.passed)
        why = "; ".join(f"{name}: {grader.reason or 'failed'}" for name, grader in failed)
    if row.stale is not None:
        why = f"{why} (stale: {'; '.join(row.stale)})"
    texts = (case, row.column), (why, row.output or "")
    (first, second) = (
        tuple(markdown_code_span(text, max_length=_MAX_CELL_CHARACTERS) for text in pair) for pair in texts
    )
    return (*first, score, *second)


def _rows_not_passed(report: RunReport) -> Iterator[Row]:
    """The rows that have no score or did not pass."""
    return (row for row in report.rows() if row.status is not RowStatus.GRADED or not row.passed)


def _table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]], name_columns: int) -> Iterator[str]:
    """The lines of a Markdown table; columns after the first ``name_columns`` are right-aligned, if there are any
    names.
    """
    yield f"| {' | '.join(map(_escape_markdown, columns))} |\n"
    yield f"| {' | '.join('---:' if name_columns and i >= name_columns else '---' for i in range(len(columns)))} |\n"
    for row in rows:
        yield f"| {' | '.join(row)} |\n"


def _escape_markdown(text: str) -> str:
    """Escape every Markdown character of a text that is ours, except for the names of targets in it."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|~#&" else char for char in text)
