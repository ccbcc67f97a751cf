"""A run as a page of Markdown: a CI job's summary. Everything that somebody else wrote stands in it as code."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from quintain.errors import QuintainError
from quintain_runner.atomic import replacing
from quintain_runner.closing import last_line
from quintain_runner.foreign import code_span
from quintain_runner.report import RunReport
from quintain_runner.rows import Row, Status
from quintain_runner.sheets import Sheet, cost_line, sheets_of

#: So many cases that did not pass are shown; the results have all.
MOST_SHOWN = 20

#: What a cell of the page may take of somebody's text, in characters.
_LONGEST = 160


def write_markdown(path: Path, report: RunReport, command: str, *, append: bool = False) -> None:
    """Write the page; ``append`` adds it to what a CI job has said before. ``command`` is what resumes the run.

    Raises `QuintainError` where the disk refuses it.
    """
    page = markdown_of(report, command)
    if not append:
        with replacing(path) as file:
            file.write(page.encode())
        return
    try:
        with path.open("a", encoding="utf-8") as summary:
            summary.write(page)
    except OSError as error:
        raise QuintainError(f"{path}: cannot be written ({error.strerror})") from None


def markdown_of(report: RunReport, command: str) -> str:
    """The page."""
    page = io.StringIO()
    page.write(f"## {code_span(report.run.name)}\n\n{code_span(last_line(report.summary, command), longest=1000)}\n")
    for sheet in sheets_of(report):
        page.write(f"\n{''.join(sheet_lines(sheet))}")
    if (cost := cost_line(report.cost)) is not None:
        page.write(f"\n{_escaped(cost)}\n")
    rows = list(islice(_not_passed(report), MOST_SHOWN + 1))
    if rows:
        page.write(f"\n### Not passed\n\n{''.join(_table(_COLUMNS, [_cells(row) for row in rows[:MOST_SHOWN]], 0))}")
    if len(rows) > MOST_SHOWN:
        page.write(f"\nThe first {MOST_SHOWN}; every row: {code_span(str(report.summary.results))}\n")
    return page.getvalue()


def sheet_lines(sheet: Sheet) -> Iterator[str]:
    """A sheet as a heading, a table and its notes, line by line."""
    yield f"### {_escaped(sheet.title)}\n\n"
    rows = [*sheet.rows, sheet.total] if sheet.total else sheet.rows
    shown = [
        tuple(code_span(cell) if i < sheet.names else _escaped(cell) for i, cell in enumerate(row)) for row in rows
    ]
    yield from _table(sheet.columns, shown, sheet.names)
    for note in sheet.notes:
        yield f"\n{_escaped(note)}\n"


_COLUMNS = ("case", "target", "score", "why", "answer")


def _cells(row: Row) -> tuple[str, ...]:
    case = row.case_id if row.repeat == 1 else f"{row.case_id} #{row.repeat}"
    score = "-" if row.score is None else f"{row.score:.3f}"
    if row.error is not None:
        why = f"{row.error.code}: {row.error.error}"
    else:
        why = "; ".join(f"{name}: {one.reason or 'failed'}" for name, one in row.graders.items() if not one.passed)
    texts = (case, row.target), (why, row.output or "")
    (first, second) = (tuple(code_span(text, longest=_LONGEST) for text in pair) for pair in texts)
    return (*first, score, *second)


def _not_passed(report: RunReport) -> Iterator[Row]:
    return (row for row in report.rows() if row.status is not Status.GRADED or not row.passed)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> Iterator[str]:
    """A table; its columns after the names are numbers, but for one that has none."""
    yield f"| {' | '.join(map(_escaped, columns))} |\n"
    yield f"| {' | '.join('---:' if names and i >= names else '---' for i in range(len(columns)))} |\n"
    for row in rows:
        yield f"| {' | '.join(row)} |\n"


def _escaped(text: str) -> str:
    """A text of ours, with a target's name in it at most: no sign of it is markup."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|~#&" else char for char in text)
