"""Prepares untrusted text for a page: controls made visible, long text cut, the difference of two texts. No I/O."""

from __future__ import annotations

import difflib
import json
import re
from typing import Final, NamedTuple

from pydantic import JsonValue

from quintain.web.text import visible

#: A text longer than this is cut on a page; the raw row has all of it.
MAX_SHOWN_CHARACTERS: Final = 20_000

#: Texts with more words than this are not compared word by word, because that takes time with the square of it.
MAX_COMPARED_WORDS: Final = 1_500

_PARTS = re.compile(r"\s+|\w+|[^\w\s]")


class TextSpan(NamedTuple):
    """A piece of text, and what the difference says of it: "same", "added" (only in the answer) or "missing"."""

    kind: str
    text: str


class ShownText(NamedTuple):
    """A text as a page shows it; ``cut`` is the number of characters that it leaves out."""

    text: str
    cut: int = 0


def shown(text: str, max_characters: int = MAX_SHOWN_CHARACTERS) -> ShownText:
    """The text as a page shows it: visible, and cut if it is long."""
    return ShownText(visible(text[:max_characters]), max(0, len(text) - max_characters))


def one_line(text: str, max_characters: int = 160) -> str:
    """The beginning of a text as one visible line."""
    line = visible(" ".join(text[: 2 * max_characters].split()))
    return line if len(line) <= max_characters else f"{line[: max_characters - 1]}…"


def json_text(value: JsonValue) -> str:
    """A JSON value as text: a string as it is, anything else as indented JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def word_difference(expected: str, answer: str) -> list[TextSpan]:
    """The difference of two texts by words; empty if they are equal, have too many words, or nothing in common."""
    before, after = _PARTS.findall(expected), _PARTS.findall(answer)
    if before == after or not before or len(before) + len(after) > MAX_COMPARED_WORDS:
        return []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    spans: list[TextSpan] = []
    for operation, start, end, new_start, new_end in matcher.get_opcodes():
        if operation == "equal":
            spans.append(TextSpan("same", visible("".join(before[start:end]))))
            continue
        spans += [TextSpan("missing", visible("".join(before[start:end])))] if end > start else []
        spans += [TextSpan("added", visible("".join(after[new_start:new_end])))] if new_end > new_start else []
    return spans if any(span.kind == "same" and span.text.strip() for span in spans) else []
