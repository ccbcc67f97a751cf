"""A message's body for a person or a program: text where it is text, else its bytes. Tokens are masked. Pure."""

from __future__ import annotations

import base64

from quintain.contracts.token import mask

#: The most bytes that are shown of a body that is no text.
MOST_DUMPED = 512

_ROW = 16


def masked(body: bytes) -> bytes:
    """The body without the secrets of the tokens in it."""
    return mask(body.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def text_of(body: bytes) -> str | None:
    """The body as text; None where it is no UTF-8."""
    try:
        return masked(body).decode()
    except UnicodeDecodeError:
        return None


def as_json(body: bytes) -> dict[str, str]:
    """The body as ``text``, or as ``base64`` where it is no UTF-8."""
    text = text_of(body)
    return {"base64": base64.b64encode(masked(body)).decode()} if text is None else {"text": text}


def hex_dump(body: bytes, *, most: int = MOST_DUMPED) -> str:
    """The first bytes, sixteen a line: offset, hexadecimal, ASCII; the last line says how many more there are."""
    hidden = masked(body)
    lines = []
    for start in range(0, min(len(hidden), most), _ROW):
        row = hidden[start : min(start + _ROW, most)]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * _ROW - 1}}  {letters}")
    if len(hidden) > most:
        lines.append(f"and {len(hidden) - most} bytes more: --json has them all")
    return "\n".join(lines)
