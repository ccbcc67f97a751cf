"""The commands and programs that a page shows."""

from __future__ import annotations

import re
from pathlib import Path

#: A block of shell commands, with its fences.
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)

_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shell_blocks(page: Path) -> list[list[str]]:
    """The lines of each block of shell commands on a page."""
    return [block.splitlines() for block in SHELL_BLOCK.findall(page.read_text())]


def python_blocks(page: Path) -> list[str]:
    """The Python programs on a page."""
    return _PYTHON_BLOCK.findall(page.read_text())
