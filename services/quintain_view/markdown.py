"""Renders Markdown of models as HTML that does nothing: it has no link, no image and no attribute. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from markupsafe import Markup, escape
from pyromark import Options, events_with_range, reference_definitions

_OPTIONS: Final = Options.ENABLE_TABLES | Options.ENABLE_STRIKETHROUGH

#: What the parts of a text become. A heading is a bold line, because the page's own are not the model's to write.
_TAGS: Final = {
    "Paragraph": "p", "Heading": "p strong", "Emphasis": "em", "Strong": "strong", "Strikethrough": "s", "Item": "li",
    "List": "ul", "OrderedList": "ol",
    "BlockQuote": "blockquote", "CodeBlock": "pre code", "HtmlBlock": "pre",
    "Table": "table", "TableHead": "thead tr", "HeadCell": "th", "TableRow": "tr", "TableCell": "td",
}  # fmt: skip

#: A line break of the text is one on the page.
_EMPTY: Final = {"SoftBreak": "<br>", "HardBreak": "<br>", "Rule": "<hr>"}

#: A text with more parts takes too long: short rows below a wide head are made as wide, which makes cells without end.
_MAX_PARTS: Final = 20_000
_AS_WRITTEN: Final = Markup("<p><em>This text has too many parts to be drawn: it is as written.</em></p><pre>{}</pre>")


def markdown_html(text: str) -> Markup:
    """The text as HTML: tags of `_TAGS` without attributes, and everything else escaped.

    HTML of the text's own, links and images stay as they are written: nothing leads anywhere, and an address that a
    reader judges is in sight. So does a text that defines addresses in lines of their own, which have no place in HTML.

    Example::

        markdown_html("# so **not**")  # <p><strong>so <strong>not</strong></strong></p>
    """
    if reference_definitions(text, options=_OPTIONS):
        return Markup("<pre>{}</pre>").format(text)
    html: list[str] = []
    opened: list[str] = []
    for kind, name in _parts(text):
        if len(html) > _MAX_PARTS:
            return _AS_WRITTEN.format(text)
        if kind == "Start":
            tags = _TAGS["HeadCell" if name == "TableCell" and opened[-1] == "</tr></thead>" else name]
            html.append(f"<{tags.replace(' ', '><')}>")
            opened.append("".join(f"</{tag}>" for tag in reversed(tags.split())))
        elif kind == "End":
            html.append(opened.pop())
        elif kind == "Code":
            html.append(f"<code>{escape(name)}</code>")
        else:
            html.append(_EMPTY.get(kind) or escape(name))
    return Markup("".join(html))  # noqa: S704 -- our own tags, and what was escaped


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """The kinds of a text's parts, each with its name or its text; a link or an image is a text."""
    source, links = text.encode(), 0
    for event, place in events_with_range(text, options=_OPTIONS, merge_text=True):
        kind, content = (event, "") if isinstance(event, str) else next(iter(cast("dict[str, object]", event).items()))
        name = content if isinstance(content, str) else next(iter(cast("dict[str, object]", content)))
        if kind in {"Start", "End"} and name in {"Link", "Image"}:
            if kind == "Start" and not links:
                yield "Text", source[place["start"] : place["end"]].decode()
            links += 1 if kind == "Start" else -1
        elif not links:
            yield kind, "OrderedList" if name == "List" and content != {"List": None} else name
