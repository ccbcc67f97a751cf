"""The view of the Fleet page: the figures as the words of its tables. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from urllib.parse import urlencode

import jinja2

from quintain.monitor.fleet_figures import FleetFigures, TargetCondition, TargetFigures
from quintain.monitor.words import amount, ends_in, errors, share, time_of_day, times
from quintain.web.pages import template_environment, to_html

ROOT = "/fleet"

#: Which targets a page shows, by the value of its field ``show``.
SHOWN = {"": "all targets", "active": "with calls", "trouble": "paused, unserved or with errors"}

#: How many targets a page shows; a table of a thousand takes a browser as long as all else together.
TARGETS_PER_PAGE = 200


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Which targets are shown: those whose name contains a text, of those the ones with a property, and which page."""

    text: str = ""
    show: str = ""
    page: int = 1

    def matches(self, target: TargetFigures) -> bool:
        """Whether the target is shown."""
        if self.text.lower() not in target.name.lower():
            return False
        if self.show == "active":
            return bool(target.running or target.queued or target.calls_per_minute)
        if self.show == "trouble":
            return target.condition is not TargetCondition.READY or bool(target.faults)
        return True

    def address(self, page: int) -> str:
        """The address of another page of the same targets."""
        given = {"q": self.text, "show": self.show, "page": page}
        return f"{ROOT}?{urlencode({name: value for name, value in given.items() if value}, errors='replace')}"


def render_fleet(figures: FleetFigures, page_filter: FleetFilter, *, seen: str) -> str:
    """The page; ``seen`` is the version of the figures, which its stream compares."""
    found = [target for target in figures.targets if page_filter.matches(target)]
    pages = max(1, -(-len(found) // TARGETS_PER_PAGE))
    page = max(1, min(page_filter.page, pages))
    return to_html(
        _environment(),
        "fleet.html",
        figures=figures,
        targets=found[(page - 1) * TARGETS_PER_PAGE : page * TARGETS_PER_PAGE],
        found=len(found),
        page=page,
        before=page_filter.address(page - 1) if page > 1 else None,
        after=page_filter.address(page + 1) if page < pages else None,
        page_filter=page_filter,
        seen=seen,
    )


def render_enter() -> str:
    """The page for those who may not look: it asks for the token."""
    return to_html(
        _environment(),
        "enter.html",
        title="Fleet",
        how="This page is for holders of the admin token.",
        wrong="The metadata service does not know this token as the administrator's.",
        asks=True,
    )


@cache
def _environment() -> jinja2.Environment:
    environment = template_environment("quintain_gateway.apis.fleet", root=ROOT)
    environment.filters.update(amount=amount, errors=errors, times=times, time_of_day=time_of_day)
    environment.globals.update(shown=SHOWN, ends_in=ends_in, share=share)
    return environment
