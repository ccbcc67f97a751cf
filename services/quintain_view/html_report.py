"""Writes runs as one HTML file that needs neither a server nor a network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from markupsafe import Markup

from quintain.web import SCRIPT_NAME, STYLE_NAME, static_file, visible
from quintain_runner.files import atomic_write
from quintain_runner.report.run_file import RunFile, read_run
from quintain_runner.report.run_report import read_recorded_report
from quintain_runner.report.text_table import TextTable
from quintain_runner.results.labels import Note
from quintain_view.case_page import CasePage
from quintain_view.filters import Shown, SortOrder, TrialFilter, TrialState
from quintain_view.index_reader import CaseEntry, IndexReader, RowMoved, open_index, rows_of_case
from quintain_view.index_writer import IndexProgress, update_index
from quintain_view.labels import agreement_tables
from quintain_view.reading import ContentMissing, build_case_page, column_counts, matrix_view
from quintain_view.render import FileLinks, file_policy, render
from quintain_view.run_page import MatrixView, RunContents, RunPage, matrix, run_page
from quintain_view.timeline import Step
from quintain_view.trajectory_files import (
    TRAJECTORIES_PER_PAGE,
    has_only_trajectories,
    list_trajectories,
    read_trajectory,
    trajectory_names,
)
from quintain_view.trajectory_page import STATE_NOTES, RunState, TrajectoryPage, trajectory_page

#: How the numbers of the tables are made; decision 7 has the reasons.
METHODS = (
    "Rows in error or in doubt have no score and are not in the means. Intervals are 95 %: Wilson's for pass rates "
    "with one trial per case, and resampling over cases for mean scores and repeats, because a case's repeats are not "
    "independent. Targets are compared on the same cases by random signs, which for passes with one trial per case is "
    "McNemar's exact test, "
    "adjusted by Holm's method over all pairs of one measure."
)


@dataclass(frozen=True, slots=True)
class CasePart:
    """A case in the file; ``place`` is its anchor."""

    place: str
    case_id: str
    page: CasePage
    notes: dict[str, Note]


@dataclass(frozen=True, slots=True)
class RunPart:
    """A run in the file, with those of its cases and trajectories that are in it.

    A folder that holds trajectories only has no ``page``.
    """

    place: str
    name: str
    title: str
    folder: str
    trajectories: ReportedTrajectories
    page: RunPage | None = None
    left_out: str = ""
    agreements: list[TextTable] = field(default_factory=list)
    cases: list[CasePart] = field(default_factory=list)


def write_html_report(path: Path, folders: Sequence[Path], case_id: str | None = None) -> None:
    """Write the runs of these folders as one HTML file, which only this user can read; of a ``case_id``, only with it.

    Raises `ConfigError` if a folder holds neither a run nor trajectories, `ContentMissing` if a run does not have the
    case, and `QuintainError` if the file or an index cannot be written.
    """
    html = html_of_runs(folders, case_id)
    with atomic_write(path) as file:
        file.write(html.encode())


def html_of_runs(folders: Sequence[Path], case_id: str | None = None) -> str:
    """The runs of these folders as one HTML file; of a ``case_id``, only with that case. Raises as
    `write_html_report`, and `ContentMissing` without that case.
    """
    parts = [
        _read_run(folder, f"{number}-{folder.resolve().name}", f"run-{number}", case_id)
        for number, folder in enumerate(folders, start=1)
    ]
    links = FileLinks(
        {(part.name, case.case_id): case.place for part in parts for case in part.cases},
        {part.name: part.place for part in parts},
        {(part.name, one.page.name): one.place for part in parts for one in part.trajectories.parts},
    )
    return render(
        "file.html",
        parts=parts,
        links=links,
        title=", ".join(part.title for part in parts),
        methods=METHODS,
        state_notes=STATE_NOTES,
        policy=file_policy(),
        # Our own files, whose hashes the policy names.
        style=Markup(static_file(STYLE_NAME)),  # noqa: S704
        script=Markup(static_file(SCRIPT_NAME)),  # noqa: S704
    )


def _read_run(folder: Path, name: str, place: str, case_id: str | None) -> RunPart:
    if has_only_trajectories(folder):
        title = visible(folder.resolve().name)
        return RunPart(place, name, title, visible(str(folder)), read_trajectories(folder, place))
    run = read_run(folder)
    progress = update_index(folder, run)
    try:
        return _run_part(folder, run, progress, name, place, case_id)
    except RowMoved:
        # The run compacted its results in between.
        return _run_part(folder, run, update_index(folder, run), name, place, case_id)


def _run_part(
    folder: Path, run: RunFile, progress: IndexProgress, name: str, place: str, case_id: str | None
) -> RunPart:
    with open_index(folder) as index:
        selection = ReportedCases() if index is None else select_cases(index, case_id)
        cases = []
        trials = sum(len(index.trials_of(case.case_no)) for case in selection.cases) if index is not None else 0
        for number, case in enumerate(selection.cases, start=1):
            rows = [] if index is None else rows_of_case(folder, index, case)
            page, notes = build_case_page(folder, run, case.case_id, rows, max_steps=max(10, MAX_STEPS // trials))
            cases.append(CasePart(f"{place}-case-{number}", case.case_id, page, notes))
        listed = [] if index is None else [(case, index.trials_of(case.case_no)) for case in selection.cases]
        view = MatrixView({}, {}, None) if index is None else matrix_view(index, run)
        everything = TrialFilter()
        shown = matrix(listed, view, everything, count=selection.total, page=1, limit=len(listed))
        page_of_run = run_page(
            read_recorded_report(folder, run),
            shown,
            everything,
            contents=RunContents() if index is None else RunContents(column_counts(index, run)),
            progress=progress,
        )
    return RunPart(
        place,
        name,
        page_of_run.title,
        page_of_run.folder,
        read_trajectories(folder, place),
        page_of_run,
        selection.note(str(folder)) if case_id is None else "",
        agreement_tables(folder),
        cases,
    )


#: A run with at most so many cases is in the file as a whole, if its rows have at most so many bytes.
MAX_CASES, MAX_BYTES = 300, 8_000_000

#: So many steps of agents are in a file in all, but of each answer at least the first ten.
MAX_STEPS = 6_000

#: Of a larger run: the first that failed or erred, the most disputed, and a sample of all.
FAILED_CASES, DISPUTED_CASES, SAMPLED_CASES = 60, 30, 30

#: Of a larger run, a case whose rows have more bytes than this is left out.
MAX_CASE_BYTES = 400_000


@dataclass(frozen=True, slots=True)
class ReportedCases:
    """The cases in the file, in the order of the results, and how many there are in all."""

    cases: list[CaseEntry] = field(default_factory=list)
    total: int = 0

    def note(self, folder: str) -> str:
        """What is left out, and where it is; empty if nothing is."""
        if len(self.cases) == self.total:
            return ""
        return (
            f"This file has {len(self.cases)} of {self.total:,} cases: the first that failed or erred, those on which "
            f"graders disagree most, and a sample of all. quintain view {folder} shows every one."
        )


def select_cases(index: IndexReader, case_id: str | None = None) -> ReportedCases:
    """The cases of a run that go into a file: the one with this id, if that is given. Raises `ContentMissing`."""
    if case_id is not None:
        case = index.find_case(case_id)
        if case is None:
            raise ContentMissing(f"This run has no row of a case {visible(case_id)}")
        return ReportedCases([case], 1)
    everything = TrialFilter()
    total = index.count_cases(everything)
    first = index.list_cases(everything, offset=0, limit=MAX_CASES + 1)
    if total <= MAX_CASES and sum(_case_size(index, case) for case in first) <= MAX_BYTES:
        return ReportedCases(first, total)
    failed = TrialFilter(states=(TrialState.FAILED, TrialState.ERROR))
    chosen = [
        *index.list_cases(failed, offset=0, limit=FAILED_CASES),
        *index.list_cases(TrialFilter(order=Shown(SortOrder.DISAGREEMENT)), offset=0, limit=DISPUTED_CASES),
        *(index.case(1 + number * total // SAMPLED_CASES) for number in range(min(SAMPLED_CASES, total))),
    ]
    kept, size = [], 0
    for case in dict.fromkeys(chosen):
        case_size = _case_size(index, case)
        if case_size <= MAX_CASE_BYTES and size + case_size <= MAX_BYTES:
            kept.append(case)
            size += case_size
    return ReportedCases(sorted(kept), total)


def _case_size(index: IndexReader, case: CaseEntry) -> int:
    return sum(trial.length for trial in index.trials_of(case.case_no))


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
        room -= sum(_step_size(step) for step in steps)
        left_out = ""
        if len(steps) < page.step_count:
            left_out = f"This file has the first {len(steps):,} of {page.step_count:,} rows of this trajectory."
        parts.append(TrajectoryPart(f"{place}-trajectory-{len(parts) + 1}", replace(page, steps=steps), left_out))
    return ReportedTrajectories(parts, len(trajectory_names(folder)))


def _fitting(steps: Sequence[Step], room: int) -> Iterator[Step]:
    for step in steps:
        room -= _step_size(step)
        if room < 0:
            return
        yield step


def _step_size(step: Step) -> int:
    named = [*(step.texts or ()), *(step.reply.texts if step.reply is not None else ())]
    return _ROW_CHARACTERS + sum(len(one.text.text) for one in named)
