"""Text that models wrote, made safe to show."""

from __future__ import annotations

import pytest

from quintain_runner.untrusted import plain_line, plain_text


@pytest.mark.parametrize(
    ("hostile", "safe"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone", "gone"),
        ("\x1bcreset", "reset"),
        ("a\rb\nc\td\x00e", "a b c d e"),
        ("abc\u202edcba", "abc dcba"),
        ("plain text stays as it is: 東京 [bold]", "plain text stays as it is: 東京 [bold]"),
    ],
)
def test_nothing_that_moves_the_terminal_is_left(hostile: str, safe: str) -> None:
    assert plain_line(hostile) == safe


def test_a_long_text_is_cut() -> None:
    assert plain_line("x" * 1000) == "x" * 399 + "…"


def test_markup_is_text() -> None:
    assert plain_text("[bold]:smile:[/bold]").plain == "[bold]:smile:[/bold]"
