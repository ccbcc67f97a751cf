"""Tables in the docs that a test makes, between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quintain.settings import environment
from support.snapshots import RECORD_VARIABLE

DOCUMENT = Path(__file__).parents[2] / "docs" / "gateway.md"


def assert_documented(name: str, rows: Sequence[Sequence[str]]) -> None:
    """Compare the table of this name in docs/gateway.md, or write it where recording was asked for.

    The first row has the heads.
    """
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    document = DOCUMENT.read_text(encoding="utf-8")
    head, found, rest = document.partition(begin)
    assert found, f"{DOCUMENT.name} has no table {name!r}"
    expected = f"{head}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    if environment().get(RECORD_VARIABLE):
        DOCUMENT.write_text(expected, encoding="utf-8")
        return
    assert document == expected
