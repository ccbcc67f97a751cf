"""Tables of text, which the terminal, Markdown and pages draw. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from quintain_runner.results.bill import BILL_COLUMNS, Bill, bill_cells, bill_rows, tries_text
from quintain_runner.untrusted import plain_line, plain_text


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


def rich_table(text_table: TextTable) -> Table:
    """A text table as a rich table, without its notes."""
    table = Table(title=Text(plain_line(text_table.title)), title_justify="left", title_style="bold")
    for number, column in enumerate(text_table.columns):
        table.add_column(column, justify="left" if number < text_table.name_columns else "right", overflow="fold")
    for row in text_table.rows:
        table.add_row(*map(plain_text, row))
    if text_table.total is not None:
        table.add_section()
        table.add_row(*map(plain_text, text_table.total))
    return table


def bill_table(bill: Bill) -> TextTable:
    """The table of a bill: what calls took by target, by grader and by role, and in all."""
    return TextTable(
        "bill",
        BILL_COLUMNS,
        [bill_cells(*row) for row in bill_rows(bill)],
        name_columns=2,
        total=(*bill_cells("all", "", bill.total)[:-1], bill.text),
        notes=[tries_text(bill.total)],
    )
