"""Text as a message can carry it."""

from __future__ import annotations


def whole(text: str) -> str:
    """The text without halves of characters, which no UTF-8 can carry: a model cut off in the middle of an emoji
    leaves one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
