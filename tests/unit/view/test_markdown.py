"""Markdown of a model as HTML: tables and lists, and nothing that leads anywhere or runs."""

from __future__ import annotations

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


def test_tables_are_tables_and_headings_are_none() -> None:
    html = markdown_html("# Title\n\n|a|\n|-|\n|b|")
    assert "<td>b</td>" in html
    assert "<h1" not in html
