"""The view of the Fleet page: the figures as the words of its tables. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import jinja2

from quintain.monitor.fleet_figures import FleetFigures, TargetCondition, TargetFigures
from quintain.monitor.words import amount, ends_in, errors, share, time_of_day, times
from quintain.web.pages import template_environment, to_html

ROOT = "/fleet"

#: Which targets a page shows, by the value of its field ``show``.
SHOWN = {"": "all targets", "active": "with calls", "trouble": "paused, unserved or with errors"}


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Which targets a page shows: those whose name contains a text, and of those the ones with a property."""

    text: str = ""
    show: str = ""

    def matches(self, target: TargetFigures) -> bool:
        """Whether the target is shown."""
        if self.text.lower() not in target.name.lower():
            return False
        if self.show == "active":
            return bool(target.running or target.queued or target.calls_per_minute)
        if self.show == "trouble":
            return target.condition is not TargetCondition.READY or bool(target.faults)
        return True


def render_fleet(figures: FleetFigures, page_filter: FleetFilter, *, seen: str) -> str:
    """The page; ``seen`` is the version of the figures, which its stream compares."""
    return to_html(
        _environment(),
        "fleet.html",
        figures=figures,
        targets=_shown(figures.targets, page_filter),
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


def _shown(targets: Iterable[TargetFigures], page_filter: FleetFilter) -> list[TargetFigures]:
    return [target for target in targets if page_filter.matches(target)]


@cache
def _environment() -> jinja2.Environment:
    environment = template_environment("quintain_gateway.apis.fleet", root=ROOT)
    environment.filters.update(amount=amount, errors=errors, times=times, time_of_day=time_of_day)
    environment.globals.update(shown=SHOWN, ends_in=ends_in, share=share)
    return environment
