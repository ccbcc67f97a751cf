"""Renders pages with Jinja2; every value is escaped, but our own style sheet and script in a file."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Final

import jinja2

from quintain_view.pages.compare_page import CHANGE_WORDS
from quintain_view.pages.plots import BAR_AREA_HEIGHT, WIDTH
from quintain_view.pages.run_page import SORT_WORDS, STATE_WORDS
from quintain_view.pages.text import visible

STYLE_NAME, SCRIPT_NAME = "view.css", "view.js"

#: What a page may load: only what this server delivers, and images that are part of the page.
SERVED_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@cache
def static_file(name: str) -> str:
    """The style sheet or the script."""
    return (resources.files("quintain_view.rendering") / "static" / name).read_text(encoding="utf-8")


def file_policy() -> str:
    """What a single file may load: nothing; its own style sheet and script are known by their hashes."""
    return (
        f"default-src 'none'; script-src '{_hash(static_file(SCRIPT_NAME))}'; "
        f"style-src '{_hash(static_file(STYLE_NAME))}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def render(template: str, **values: object) -> str:
    """Render the template of this name as HTML."""
    # Half of a surrogate pair cannot be sent as UTF-8.
    return _environment().get_template(template).render(**values).encode(errors="replace").decode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("quintain_view.rendering", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters["visible"] = visible
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
