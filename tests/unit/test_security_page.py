"""docs/operate.md: each sentence of its table of what nobody can do names files of tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "operate.md"


def test_each_sentence_names_tests_that_there_are() -> None:
    table = PAGE.read_text().partition("| who | cannot | test |\n")[2].partition("\n\n")[0]
    _, *cells = [line.strip("| ").split(" | ")[-1] for line in table.splitlines()]
    assert cells
    for cell in cells:
        files = re.findall(r"`(\S+\.py)`", cell)
        assert files, cell
        assert [name for name in files if not (TESTS / name).is_file()] == []
