"""Text of Markdown pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; line ends and bars in its cells are escaped."""
    lines = [list(heads), ["---"] * len(heads), *[[_cell(text) for text in row] for row in rows]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def code(text: object) -> str:
    """Return text as code."""
    return f"`{text}`"


def from_docstring(text: str | None) -> str:
    """Return a docstring as Markdown: double backticks become single ones, lines are joined."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join((text or "").split()))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
