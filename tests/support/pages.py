"""The commands, programs and tables that a page shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from quintain.settings import environment
from support.snapshots import RECORD_VARIABLE

#: A block of shell commands, with its fences.
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)

_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shell_blocks(page: Path) -> list[list[str]]:
    """The lines of each block of shell commands on a page."""
    return [block.splitlines() for block in SHELL_BLOCK.findall(page.read_text())]


def python_blocks(page: Path) -> list[str]:
    """The Python programs on a page."""
    return _PYTHON_BLOCK.findall(page.read_text())


DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol" / "fields.md"


def assert_documented(name: str, rows: Sequence[Sequence[str]]) -> None:
    """Compare the table of this name in docs/protocol/fields.md, or write it where recording was asked for.

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
