"""Chooses the trajectories that go into a single file, and as much of each as the file has room for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quintain_view.pages.trajectory_page import RunState, Step, TrajectoryPage, trajectory_page
from quintain_view.reading.content import ContentMissing
from quintain_view.reading.trajectories import (
    TRAJECTORIES_PER_PAGE,
    list_trajectories,
    read_trajectory,
    trajectory_names,
)

#: So many trajectories of a folder are in a file, with so many characters of events and replies in all.
MAX_TRAJECTORIES, MAX_CHARACTERS = 30, 3_000_000

#: A row has so many characters besides its texts.
_ROW_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class TrajectoryPart:
    """A trajectory in the file. ``place`` is its anchor, ``left_out`` says which of its events are not in the file."""

    place: str
    page: TrajectoryPage
    left_out: str


@dataclass(frozen=True, slots=True)
class ReportedTrajectories:
    """The trajectories in the file, the newest first, and how many there are in all."""

    parts: list[TrajectoryPart] = field(default_factory=list)
    total: int = 0

    def note(self, folder: str) -> str:
        """What is left out, and where it is; empty if nothing is."""
        if len(self.parts) == self.total:
            return ""
        return (
            f"This file has {len(self.parts)} of {self.total:,} trajectories: of the newest {TRAJECTORIES_PER_PAGE} "
            f"first those that failed or were stopped, then the newest. quintain view {folder} shows every one."
        )


def read_trajectories(folder: Path, place: str) -> ReportedTrajectories:
    """The trajectories of a folder that go into a file; ``place`` is the anchor of their run."""
    entries, _ = list_trajectories(folder)
    # The first of those that did not end well, and then of the others, in the order of the list.
    chosen = sorted(entries, key=lambda entry: entry.state is RunState.ENDED)[:MAX_TRAJECTORIES]
    names = {entry.name for entry in chosen}
    parts: list[TrajectoryPart] = []
    room = MAX_CHARACTERS
    for name in (entry.name for entry in entries if entry.name in names):
        try:
            page = trajectory_page(read_trajectory(folder, name), int(time.time() * 1000), 1)
        except ContentMissing:
            # It was removed meanwhile.
            continue
        steps = list(_fitting(page.steps, room))
        room -= sum(_size(step) for step in steps)
        left_out = ""
        if len(steps) < page.step_count:
            left_out = f"This file has the first {len(steps):,} of {page.step_count:,} rows of this trajectory."
        parts.append(TrajectoryPart(f"{place}-trajectory-{len(parts) + 1}", replace(page, steps=steps), left_out))
    return ReportedTrajectories(parts, len(trajectory_names(folder)))


def _fitting(steps: Sequence[Step], room: int) -> Iterator[Step]:
    for step in steps:
        room -= _size(step)
        if room < 0:
            return
        yield step


def _size(step: Step) -> int:
    named = [*(step.texts or ()), *(step.reply.texts if step.reply is not None else ())]
    return _ROW_CHARACTERS + sum(len(one.text.text) for one in named)
