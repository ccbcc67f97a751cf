"""Text that somebody else wrote, in a terminal and in the files that a run leaves: nothing in it is alive there."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from quintain_runner.untrusted import csv_cell, markdown_code_span, plain_line, plain_text, xml_text

HOSTILE = [
    "[click](https://evil.example)",
    "![x](https://evil.example/pixel.png)",
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "https://evil.example and www.evil.example and a@evil.example",
    "a | b \\| c \\",
    "`code` and ``more`` and ```",
    "`",
    "# heading\n- list\n\n> quote",
    "@everyone closes #1",
    "\x1b]8;;https://evil.example\x07link\x1b]8;;\x07 \x1b[2J\x9b31m \u202eevil",
    "&lt;b&gt; &#64; &amp;",
    "~~gone~~ **bold** _it_ $x$",
]


MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")


def cells_of(text: str) -> list[str]:
    """The cells of a line of a table with the text in its first one."""
    html = MARKDOWN.render(f"| a | b |\n| --- | --- |\n| {markdown_code_span(text)} | last |\n")
    return re.findall(r"<td>(.*?)</td>", html, re.DOTALL)


@pytest.mark.parametrize("text", HOSTILE)
def test_in_markdown_it_is_code_and_nothing_else(text: str) -> None:
    html = MARKDOWN.render(f"before {markdown_code_span(text)} after")
    assert re.fullmatch(r"<p>before <code>[^<]*</code> after</p>\n", html), html
    cell, last = cells_of(text)
    assert re.fullmatch(r"<code>[^<]*</code>", cell)
    assert last == "last"


@given(st.text(min_size=1))
def test_whatever_it_is_it_is_code_in_its_cell(text: str) -> None:
    assert "\n" not in markdown_code_span(text)
    assert [re.sub(r"^<code>[^<]*</code>$", "", cell) for cell in cells_of(text)] == ["", "last"]


def test_markdown_shows_what_was_written() -> None:
    assert markdown_code_span("a < b & `c`") == "`` a < b & `c` ``"
    assert markdown_code_span("") == ""
    assert markdown_code_span("x" * 300, max_length=10) == f"`{'x' * 9}…`"


@given(st.text())
def test_whatever_it_is_xml_can_hold_it(text: str) -> None:
    read = ET.fromstring(f"<a>{escape(xml_text(text))}</a>").text or ""
    assert len(read.replace("\n", "")) == len(re.sub(r"\r\n?|\n", "", text))


@given(st.text())
def test_no_control_goes_into_xml_or_csv(text: str) -> None:
    written = xml_text(text) + csv_cell(text)
    assert [char for char in written if unicodedata.category(char) == "Cc" and char not in "\t\r\n"] == []


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1+1", "\t=1", "\r=1", "\n=1", "\uff1d1+1", '=HYPERLINK("http://x","y")']
)
def test_no_cell_of_csv_is_calculated(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


def test_harmless_cells_stay_as_they_are() -> None:
    for text in ("Paris", "1 - 2", "a=b", "", "two\nlines", 'said "so", and more'):
        assert csv_cell(text) == text
        sheet = io.StringIO(newline="")
        csv.writer(sheet).writerow([csv_cell(text), "last"])
        assert list(csv.reader(io.StringIO(sheet.getvalue(), newline=""))) == [[text, "last"]]


@pytest.mark.parametrize(
    ("hostile", "safe"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        *(("\x9b2Jgone", "gone"), ("\x1bcreset", "reset"), ("a\rb\nc\td\x00e", "a b c d e")),
        ("abc\u202edcba", "abc dcba"),
        ("plain text stays as it is: 東京 [bold]", "plain text stays as it is: 東京 [bold]"),
    ],
)
def test_nothing_that_moves_the_terminal_is_left(hostile: str, safe: str) -> None:
    assert plain_line(hostile) == safe
    assert plain_line("x" * 1000) == "x" * 399 + "…"
    assert plain_text("[bold]:smile:[/bold]").plain == "[bold]:smile:[/bold]", "markup is text"
