"""What an HTML report holds compressed."""

from __future__ import annotations

import base64
import re
import zlib


def cards_of(html: str) -> dict[str, str]:
    """The cards of the cases and trajectories in a report, by their anchors."""
    cards: dict[str, str] = {}
    for places, data in re.findall(r'<template data-places="([^"]*)">([^<]*)</template>', html):
        texts = zlib.decompress(base64.b64decode(data)).decode().split("\0")
        cards.update(zip(places.split(), texts, strict=True))
    return cards
