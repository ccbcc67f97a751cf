"""Puts the pages of runs and of their cases into one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

from quintain.web.pages import SCRIPT_NAME, STYLE_NAME, static_file
from quintain.web.text import visible
from quintain_runner import RunFile, atomic_write, read_recorded_report, read_run
from quintain_view.html_report.selection import ReportedCases, select_cases
from quintain_view.html_report.trajectories import ReportedTrajectories, read_trajectories
from quintain_view.index.filters import TrialFilter
from quintain_view.index.reader import open_index
from quintain_view.index.rows import RowMoved
from quintain_view.index.writer import IndexProgress, update_index
from quintain_view.labels.agreement import Agreement
from quintain_view.labels.notes import Note
from quintain_view.pages.case_page import CasePage
from quintain_view.pages.run_page import RunPage, matrix, run_page
from quintain_view.pages.trajectory_page import STATE_NOTES
from quintain_view.reading.content import build_case_page, column_counts, read_agreements, rows_of_case
from quintain_view.reading.trajectories import has_only_trajectories
from quintain_view.rendering.links import FileLinks
from quintain_view.rendering.render import file_policy, render

#: How the numbers of the tables are made; decision 7 has the reasons.
METHODS = (
    "Rows in error or in doubt have no score and are not in the means. Intervals are 95 %: Wilson's for pass rates "
    "with one trial per case, and resampling over cases for mean scores and repeats, because a case's repeats are not "
    "independent. Targets are compared on the same cases: McNemar's exact test for passes, random signs for scores, "
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
    agreements: list[Agreement] = field(default_factory=list)
    cases: list[CasePart] = field(default_factory=list)


def write_html_report(path: Path, folders: Sequence[Path]) -> None:
    """Write the runs of these folders as one HTML file.

    Raises `ConfigError` if a folder holds neither a run nor trajectories, and `QuintainError` if the file or an index
    cannot be written.
    """
    parts = [
        _read_run(folder, f"{number}-{folder.resolve().name}", f"run-{number}")
        for number, folder in enumerate(folders, start=1)
    ]
    links = FileLinks(
        {(part.name, case.case_id): case.place for part in parts for case in part.cases},
        {part.name: part.place for part in parts},
        {(part.name, one.page.name): one.place for part in parts for one in part.trajectories.parts},
    )
    html = render(
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
    with atomic_write(path, mode=0o666) as file:
        file.write(html.encode())


def _read_run(folder: Path, name: str, place: str) -> RunPart:
    if has_only_trajectories(folder):
        title = visible(folder.resolve().name)
        return RunPart(place, name, title, visible(str(folder)), read_trajectories(folder, place))
    run = read_run(folder)
    progress = update_index(folder, run)
    try:
        return _run_part(folder, run, progress, name, place)
    except RowMoved:
        # The run compacted its results in between.
        return _run_part(folder, run, update_index(folder, run), name, place)


def _run_part(folder: Path, run: RunFile, progress: IndexProgress, name: str, place: str) -> RunPart:
    with open_index(folder) as index:
        selection = ReportedCases() if index is None else select_cases(index)
        cases = []
        for number, case in enumerate(selection.cases, start=1):
            rows = [] if index is None else rows_of_case(folder, index, case)
            page, notes = build_case_page(folder, run, case.case_id, rows)
            cases.append(CasePart(f"{place}-case-{number}", case.case_id, page, notes))
        listed = [] if index is None else [(case, index.trials_of(case.case_no)) for case in selection.cases]
        columns = {} if index is None else index.columns
        everything = TrialFilter()
        shown = matrix(listed, columns, everything, count=selection.total, page=1, limit=len(listed))
        page_of_run = run_page(
            read_recorded_report(folder, run),
            shown,
            everything,
            counts={} if index is None else column_counts(index, run),
            graders=[],
            progress=progress,
        )
    return RunPart(
        place,
        name,
        page_of_run.title,
        page_of_run.folder,
        read_trajectories(folder, place),
        page_of_run,
        selection.note(str(folder)),
        read_agreements(folder),
        cases,
    )
