"""Renders the pages of runs; every value is escaped, but our own style sheet and script in a file."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

import jinja2

from quintain.web.pages import SCRIPT_NAME, STYLE_NAME, static_file, template_environment, to_html
from quintain_view.pages.compare_page import CHANGE_WORDS
from quintain_view.pages.plots import BAR_AREA_HEIGHT, WIDTH
from quintain_view.pages.run_page import SORT_WORDS, STATE_WORDS


def file_policy() -> str:
    """What a single file may load: nothing; its own style sheet and script are known by their hashes."""
    return (
        f"default-src 'none'; script-src '{_hash(static_file(SCRIPT_NAME))}'; "
        f"style-src '{_hash(static_file(STYLE_NAME))}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def render(template: str, **values: object) -> str:
    """Render the template of this name as HTML."""
    return to_html(_environment(), template, **values)


@cache
def _environment() -> jinja2.Environment:
    environment = template_environment("quintain_view.rendering")
    environment.filters["score"] = _score
    environment.globals.update(
        state_words=STATE_WORDS,
        sort_words=SORT_WORDS,
        change_words=CHANGE_WORDS,
        plot_width=WIDTH,
        bar_height=BAR_AREA_HEIGHT,
    )
    return environment


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
