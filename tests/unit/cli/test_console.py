"""What commands print: bodies of anybody's as text, or as base64; errors; no secrets."""

from __future__ import annotations

import base64

import pytest
import typer

from quintain.contracts.credentials import SessionToken
from quintain.errors import Unauthorized
from quintain_cli import console
from quintain_cli.console import body_to_json, body_to_text


def test_text_is_text_and_anything_else_is_bytes() -> None:
    assert body_to_text("ümläüt\n\x1b[31m".encode()) == "ümläüt\n\x1b[31m"
    assert body_to_json(b"text") == {"text": "text"}
    assert body_to_text(b"\xff\xfe") is None
    assert body_to_json(b"\xff\xfe\x00") == {"base64": base64.b64encode(b"\xff\xfe\x00").decode()}
    assert body_to_json(b"") == {"text": ""}


def test_a_table_breaks_no_name_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table([("set", "QUINTAIN_SESSION_TOKEN_FILE_NAME " * 5)], ("", "fix"))
    assert len(capsys.readouterr().out.strip().splitlines()) == 2


@pytest.mark.parametrize("around", [b"", b"\xff\x00"], ids=["text", "bytes"])
def test_a_token_in_a_body_is_masked_however_it_is_shown(around: bytes) -> None:
    token = SessionToken.mint()
    body = around + f"my token is {token.text}".encode()
    secret = token.text.split("_")[3]
    shown = body_to_json(body)
    whole = shown.get("text") or base64.b64decode(shown["base64"]).decode(errors="replace")
    assert token.id in whole
    assert secret not in whole


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
