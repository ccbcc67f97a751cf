"""Markdown of a model as HTML: tables and lists, and nothing that leads anywhere or runs."""

from __future__ import annotations

import html
import re

import pytest

from quintain_view.markdown import markdown_html

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[a](javascript:alert(1))",
    "![a](https://evil.example/x.png)",
    "<https://evil.example>",
    "[a][b]\n\n[b]: javascript:alert(1)",
    '```"><script>alert(1)</script>\n<b>\n```',
    "> " * 5_000 + "<script>",
    "|<a href=x>|\n|-|\n|<svg onload=alert(1)>|",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_makes_an_attribute_a_link_an_image_or_a_script(text: str) -> None:
    tags = re.findall(r"<[^>]*>", markdown_html(text))
    assert [tag for tag in tags if not re.fullmatch(r"</?[a-z]+>", tag)] == []
    assert {"<a>", "<img>", "<script>", "<svg>", "<b>"} & {*tags} == set()


@pytest.mark.parametrize(
    "text",
    [
        *("see [a *b*](http://c 'd')", "![a [c](d)](b.png)", "<http://a>", "[a]: http://b\n\n[a]"),
        "x <b>y</b>\n\n<!-- c -->\nd",
    ],
)
def test_links_images_and_html_are_there_as_they_were_written(text: str) -> None:
    shown = html.unescape(re.sub(r"<[^>]*>", "", markdown_html(text)))
    assert "".join(shown.split()) == "".join(text.split())
    assert markdown_html(f"{text} Link").endswith(">")


@pytest.mark.parametrize(
    "text", ["|" + "a|" * 2_000 + "\n|" + "-|" * 2_000 + "\n" + "|b|\n" * 2_000, ">" * 20_000, "`a` " * 11_000]
)
def test_a_text_of_very_many_parts_is_as_written_and_says_so(text: str) -> None:
    note, _, shown = markdown_html(text).partition("<pre>")
    assert "as written" in note
    assert html.unescape(shown) == f"{text}</pre>"


def test_tables_are_tables_and_headings_are_none() -> None:
    shown = markdown_html("# Title\n\n|a|\n|-|\n|b|")
    assert "<th>a</th></tr></thead><tr><td>b</td>" in shown
    assert "<h1" not in shown
