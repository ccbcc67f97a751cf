"""Tables of text, which the terminal, Markdown and pages draw. No I/O."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from quintain_runner.results.bill import BILL_COLUMNS, Bill, bill_cells, bill_rows, tries_text
from quintain_runner.statistics.analysis import MISSING
from quintain_runner.untrusted import plain_line, plain_text

#: What a cell shows that has no value.
_NO_VALUE = {"", MISSING}


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text: title, columns and rows. The first ``name_columns`` columns contain untrusted names."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    name_columns: int = 1
    #: The last row, with totals.
    total: tuple[str, ...] | None = None
    #: Explanations below the table, one sentence each.
    notes: list[str] = field(default_factory=list)

    def without_empty_columns(self) -> TextTable:
        """The table without the columns that have no value in any row, but with those of names."""
        rows = [*self.rows, *([] if self.total is None else [self.total])]
        kept = [
            number
            for number in range(len(self.columns))
            if number < self.name_columns or any(row[number] not in _NO_VALUE for row in rows)
        ]

        def narrowed(row: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(row[number] for number in kept)

        total = None if self.total is None else narrowed(self.total)
        return replace(self, columns=narrowed(self.columns), rows=[narrowed(row) for row in self.rows], total=total)


def rich_tables(text_table: TextTable, width: int) -> list[Table]:
    """A text table as rich tables, without its notes: several, each with the names, where one is wider than ``width``.

    So no number is broken in two; a name is, where names take more than half of the width.
    """
    text_table = text_table.without_empty_columns()
    widths = [_column_width(text_table, number) for number in range(len(text_table.columns))]
    names = range(text_table.name_columns)
    room = width - 1 - min(sum(widths[number] for number in names), width // 2)
    groups: list[list[int]] = [[]]
    for number in range(text_table.name_columns, len(widths)):
        if groups[-1] and sum(widths[each] for each in groups[-1]) + widths[number] > room:
            groups.append([])
        groups[-1].append(number)
    return [_rich_table(text_table, [*names, *group], has_title=group is groups[0]) for group in groups]


def _rich_table(text_table: TextTable, shown: Sequence[int], *, has_title: bool) -> Table:
    title = Text(plain_line(text_table.title)) if has_title else None
    table = Table(title=title, title_justify="left", title_style="bold")
    for number in shown:
        is_name = number < text_table.name_columns
        table.add_column(
            text_table.columns[number], justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name
        )
    for row in text_table.rows:
        table.add_row(*(plain_text(row[number]) for number in shown))
    if text_table.total is not None:
        table.add_section()
        table.add_row(*(plain_text(text_table.total[number]) for number in shown))
    return table


def _column_width(text_table: TextTable, number: int) -> int:
    """The width of a column in characters, with its padding and its line."""
    rows = [text_table.columns, *text_table.rows, *([] if text_table.total is None else [text_table.total])]
    return 3 + max(cell_len(plain_text(row[number]).plain) for row in rows)


def bill_table(bill: Bill) -> TextTable:
    """The table of a bill: what calls took by target, by grader and by role, and in all."""
    return TextTable(
        "Bill",
        BILL_COLUMNS,
        [bill_cells(*row) for row in bill_rows(bill)],
        name_columns=2,
        total=(*bill_cells("all", "", bill.total)[:-1], bill.text),
        notes=[tries_text(bill.total)],
    )


def html_table(table: TextTable) -> str:
    """A table as HTML, with its notes below it. Names are data: they are escaped, and control characters are gone."""

    def row(cells: tuple[str, ...], tag: str) -> str:
        texts = (html.escape(plain_line(cell)) for cell in cells)
        return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"

    rows = [*table.rows, *([] if table.total is None else [table.total])]
    notes = "".join(f"<p>{html.escape(plain_line(note))}</p>" for note in table.notes)
    return f"<table>{row(table.columns, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>{notes}"
