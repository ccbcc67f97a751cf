"""Renders Markdown of models as HTML that does nothing: it has no link, no image and no attribute. No I/O."""

from __future__ import annotations

import itertools
from typing import Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

#: HTML of the text's own, links and images stay as they are written: nothing leads anywhere, and an address that a
#: reader judges is in sight. A line break of the text is one on the page.
_PARSER: Final = (
    MarkdownIt("commonmark", {"html": False, "breaks": True})
    .enable(["table", "strikethrough"])
    .disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])
)

#: What may be in the result, without any attribute. The parser makes nothing else; this does not rely on it.
_TAGS: Final = {
    "p", "br", "hr", "strong", "em", "s", "code", "pre", "blockquote", "ul", "ol", "li",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip


def markdown_html(text: str) -> Markup:
    """The text as HTML; its headings are bold lines, because the page's own are not the model's to write.

    Example::

        markdown_html("# so **not**")  # <p><strong>so <strong>not</strong></strong></p>
    """
    tokens = _PARSER.parse(text)
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            inline.children = [
                Token("strong_open", "strong", 1),
                *(inline.children or ()),
                Token("strong_close", "strong", -1),
            ]
    for token in tokens:
        if token.type in {"heading_open", "heading_close"}:
            token.tag = "p"
    html = _PARSER.renderer.render(tokens, _PARSER.options, {})
    return Markup(nh3.clean(html, tags=_TAGS, attributes={}))  # noqa: S704 -- what nh3 leaves has no attribute
