"""Makes untrusted text safe for a terminal: one line, without escape sequences, control characters or markup."""

from __future__ import annotations

import re

from rich.text import Text

#: Terminal control sequences, which are removed as a whole: CSI, OSC and similar ones, then any other escape sequence.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)

#: Characters that move the cursor or change the direction of the text.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")

#: The most characters shown of one untrusted text.
MAX_LENGTH = 400


def plain_line(text: str, *, max_length: int = MAX_LENGTH) -> str:
    """The text as one line without control sequences, control characters and direction marks, at most ``max_length``
    long.
    """
    line = " ".join(_CONTROLS.sub(" ", _SEQUENCES.sub("", text)).split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def plain_text(text: str, style: str = "") -> Text:
    """The text as a rich `Text`, in which markup, emoji names and links are not interpreted."""
    return Text(plain_line(text), style=style)
