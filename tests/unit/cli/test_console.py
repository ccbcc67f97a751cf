"""What commands print: bodies of anybody's as text, or as bytes that are counted and bounded; errors; no secrets."""

from __future__ import annotations

import base64

import pytest
import typer

from quintain.contracts.credentials import SessionToken
from quintain.errors import Unauthorized
from quintain_cli import console
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


def test_a_refused_token_is_told_with_the_variables_that_are_set_and_without_their_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("QUINTAIN_SESSION_TOKEN", "QUINTAIN_SESSION_TOKEN_FILE", "QUINTAIN_ADMIN_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    token = SessionToken.mint()
    monkeypatch.setenv("QUINTAIN_SESSION_TOKEN", token.text)
    monkeypatch.setenv("QUINTAIN_ADMIN_TOKEN", "a secret of 16 characters")
    with pytest.raises(typer.Exit):
        console.exit_with_error(Unauthorized(), as_json=False)
    told = capsys.readouterr().err
    assert all(part in told for part in ("QUINTAIN_SESSION_TOKEN", token.id, "QUINTAIN_ADMIN_TOKEN"))
    assert token.text not in told
    assert "a secret" not in told
    assert "_FILE" not in told
