"""Renders the pages of runs as HTML, for a server or a single file: their addresses, and the templates."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar
from urllib.parse import quote, urlencode

import jinja2

from quintain.web import SCRIPT_NAME, STYLE_NAME, static_file, template_environment, to_html, visible
from quintain_view.filters import OUTCOMES, SCOPES, STATE_WORDS
from quintain_view.markdown import markdown_html
from quintain_view.plots import BAR_AREA_HEIGHT, TREND_HEIGHT, WIDTH
from quintain_view.text import json_text, shown


class ServedLinks:
    """The addresses of the server."""

    is_served = True

    def run(self, name: str, query: str = "") -> str:
        """A run, with filters."""
        return _with_query(f"/run/{quote(name, safe='')}", query)

    def case(self, name: str, case_id: str, query: str = "") -> str:
        """A case of a run; ``query`` is the list in which it stands."""
        case_query = urlencode({"id": case_id.encode(errors="replace").decode()})
        return _with_query(f"{self.run(name)}/case", "&".join(part for part in (case_query, query) if part))

    def label(self, name: str, query: str = "") -> str:
        """The answers of a run that are to be labeled; ``query`` names the queue."""
        return _with_query(f"{self.run(name)}/label", query)

    def failure(self, name: str, query: str) -> str:
        """The next or the previous failure of the list that the query describes."""
        return f"{self.run(name)}/failure?{query}"

    def case_file(self, name: str, case_id: str) -> str:
        """A case as a file of its own."""
        return f"{self.run(name)}/file?{urlencode({'id': case_id.encode(errors='replace').decode()})}"

    def raw(self, name: str, case_id: str, trial: str) -> str:
        """The stored row of a trial."""
        ids = {"id": case_id.encode(errors="replace").decode(), "trial": trial.encode(errors="replace").decode()}
        return f"{self.run(name)}/raw?{urlencode(ids)}"

    def compare(self, before: str, after: str, query: str = "") -> str:
        """Two runs, case by case."""
        return _with_query(f"{self.run(after)}/compare/{quote(before, safe='')}", query)

    def trajectories(self, name: str, file: str = "", *, page: int | None = None) -> str:
        """The recorded runs of hosted targets of a folder, or one of them."""
        path = f"{self.run(name)}/trajectories" + (f"/{quote(file, safe='')}" if file else "")
        return _with_query(path, "" if page is None else urlencode({"page": page}))


@dataclass(frozen=True, slots=True)
class FileLinks:
    """The anchors of a run's cases in a file, by id."""

    places: Mapping[str, str] = field(default_factory=dict)
    is_served: ClassVar = False

    def run(self, name: str, query: str = "") -> None:
        """A list with filters is not in a file."""

    def case(self, name: str, case_id: str, query: str = "") -> str:
        """The anchor of a case."""
        return f"#{self.places[case_id]}"


def _with_query(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


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
    environment = template_environment("quintain_view")
    environment.filters["score"] = _score
    environment.filters["shown"] = shown
    environment.filters["json_text"] = json_text
    environment.filters["markdown"] = lambda text: markdown_html(visible(text))
    environment.globals.update(
        state_words=STATE_WORDS,
        scopes=SCOPES,
        column_states=list(OUTCOMES),
        plot_width=WIDTH,
        bar_height=BAR_AREA_HEIGHT,
        trend_height=TREND_HEIGHT,
    )
    return environment


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
