"""Makes untrusted text safe for a terminal: one line, without escape sequences, control characters or markup."""

from __future__ import annotations

import re

from rich.text import Text

#: Terminal control sequences (CSI, OSC and its kin, then any other escape), taken out whole.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)

#: What could move the cursor or turn the line's direction.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")

#: The most characters one piece of foreign text may take.
MAX_LENGTH = 400


def plain_line(text: str, *, max_length: int = MAX_LENGTH) -> str:
    """One line of the text without control sequences, control characters and direction marks."""
    line = " ".join(_CONTROLS.sub(" ", _SEQUENCES.sub("", text)).split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def plain_text(text: str, style: str = "") -> Text:
    """The text for a rich console: never read as markup, an emoji's name or a link."""
    return Text(plain_line(text), style=style)
