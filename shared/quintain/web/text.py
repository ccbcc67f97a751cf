"""Makes the controls in untrusted text visible."""

from __future__ import annotations

import re

#: Controls, marks that change the direction of text, invisible characters, and halves of surrogate pairs.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with each control character and direction mark replaced by its code point, such as ``⟦U+202E⟧``."""
    return _INVISIBLE.sub(lambda match: f"⟦U+{ord(match[0]):04X}⟧", text.replace("\r\n", "\n"))
