"""A body of anybody's for a person or a program: text, or bytes that are counted and bounded; no secrets."""

from __future__ import annotations

import base64

import pytest

from quintain.contracts.token import SessionToken
from quintain_cli.console import MAX_DUMPED_BYTES, body_to_json, body_to_text, hex_dump


def test_text_is_text_and_anything_else_is_bytes() -> None:
    assert body_to_text("ümläüt\n\x1b[31m".encode()) == "ümläüt\n\x1b[31m"
    assert body_to_json(b"text") == {"text": "text"}
    assert body_to_text(b"\xff\xfe") is None
    assert body_to_json(b"\xff\xfe\x00") == {"base64": base64.b64encode(b"\xff\xfe\x00").decode()}
    assert body_to_json(b"") == {"text": ""}


@pytest.mark.parametrize("around", [b"", b"\xff\x00"], ids=["text", "bytes"])
def test_a_token_in_a_body_is_masked_however_it_is_shown(around: bytes) -> None:
    token = SessionToken.mint()
    body = around + f"my token is {token.text}".encode()
    secret = token.text.split("_")[3]
    shown = body_to_json(body)
    whole = shown.get("text") or base64.b64decode(shown["base64"]).decode(errors="replace")
    assert token.id in whole
    assert secret not in whole
    rows = [line.rsplit("  ", 1)[1] for line in hex_dump(body).splitlines()]
    assert secret[:16] not in "".join(rows)


def test_a_dump_has_offset_hexadecimal_and_ascii_and_steers_no_terminal() -> None:
    assert hex_dump(b"ab\x1b[31m\xff|\x00\x7f") == (
        "00000000  61 62 1b 5b 33 31 6d ff 7c 00 7f                 ab.[31m.|.."
    )


@pytest.mark.parametrize(
    ("size", "rows", "says"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (16, 1, ""),
        (17, 2, ""),
        (MAX_DUMPED_BYTES, MAX_DUMPED_BYTES // 16, ""),
        (MAX_DUMPED_BYTES + 1, MAX_DUMPED_BYTES // 16, "and 1 bytes more: --json has them all"),
    ],
)
def test_a_dump_is_bounded_and_says_what_it_leaves_out(size: int, rows: int, says: str) -> None:
    lines = hex_dump(b"\xff" * size).splitlines()
    assert sum(line.count(" ff") for line in lines) == min(size, MAX_DUMPED_BYTES)
    assert [line for line in lines if not line[:8].isalnum()] == ([says] if says else [])
    assert len(lines) == rows + bool(says)
