"""The code blocks of README.md and docs: what a reader copies is correct."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_graders_that_the_page_shows_are_typed(tmp_path: Path) -> None:
    for number, block in enumerate(_PYTHON.findall((REPOSITORY / "docs" / "graders.md").read_text())):
        (tmp_path / f"block_{number}.py").write_text(block)
    # The repository's cache holds the library's types; checking them again takes ten seconds.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, sorted(tmp_path.glob("*.py")))],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
