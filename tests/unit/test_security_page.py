"""docs/security.md: each sentence of its first table names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"


def test_each_sentence_names_tests_that_there_are() -> None:
    table = PAGE.read_text().partition("## ")[0]
    rows = [line.strip("| ").split(" | ")[-1] for line in table.splitlines() if line.startswith("|")][2:]
    for cell in rows:
        named = re.findall(r"`(\S+\.py)`: ((?:`test_\w+`(?:, )?)+)", cell)
        assert named, cell
        for file, tests in named:
            source = (TESTS / file).read_text()
            for name in re.findall(r"test_\w+", tests):
                assert f"def {name}(" in source, (file, name)
