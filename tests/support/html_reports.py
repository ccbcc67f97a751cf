"""What an HTML report holds compressed, and what no page has of a text that somebody else wrote."""

from __future__ import annotations

import base64
import re
import zlib
from html.parser import HTMLParser


def cards_of(html: str) -> dict[str, str]:
    """The cards of the cases and trajectories in a report, by their anchors."""
    cards: dict[str, str] = {}
    for places, data in re.findall(r'<template data-places="([^"]*)">([^<]*)</template>', html):
        texts = zlib.decompress(base64.b64decode(data)).decode().split("\0")
        cards.update(zip(places.split(), texts, strict=True))
    return cards


def assert_harmless(html: str) -> None:
    """Assert that a page of hostile texts has one script, its own, and no tag, attribute or control of theirs."""
    found: list[tuple[str, set[str]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, {name for name, _ in attributes}))
    parser.feed(html)
    tags, attributes = [tag for tag, _ in found], {name for _, names in found for name in names}
    assert tags.count("script") == 1
    assert {"img", "iframe", "object", "embed", "base"} & {*tags} == set()
    assert [name for name in attributes if name.startswith("on") or name == "style"] == []
    assert re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html) == []
    assert "{{ 7*7 }}" in html
