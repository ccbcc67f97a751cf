"""Writes runs as one HTML file that needs neither a server nor a network."""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from quintain.web import SCRIPT_NAME, STYLE_NAME, static_file
from quintain_runner.files import atomic_write
from quintain_runner.report.run_file import RunFile, read_run
from quintain_runner.report.text_table import TextTable
from quintain_runner.results.labels import Note
from quintain_view.case_page import CasePage
from quintain_view.filters import TrialFilter, TrialState
from quintain_view.index_reader import CaseEntry, IndexReader, RowMoved
from quintain_view.index_writer import IndexProgress, update_index
from quintain_view.labels import agreement_tables
from quintain_view.reading import ContentMissing, case_pages, read_case_rows, read_run_page
from quintain_view.render import FileLinks, file_policy, render
from quintain_view.run_page import MatrixRow, RunPage
from quintain_view.trajectory_files import (
    has_only_trajectories,
    list_trajectories,
    read_trajectory,
    trajectory_names,
)
from quintain_view.trajectory_page import STATE_NOTES, RunState, TrajectoryEntry, trajectory_page

#: How the numbers of the tables are made; decision 7 has the reasons.
METHODS = (
    "Rows in error or in doubt have no score and are not in the means. Intervals are 95 %: Wilson's for pass rates "
    "with one trial per case, and resampling over cases for mean scores and repeats, because a case's repeats are not "
    "independent. Targets are compared on the same cases by random signs, which for passes with one trial per case is "
    "McNemar's exact test, "
    "adjusted by Holm's method over all pairs of one measure."
)


class Pack(NamedTuple):
    """Cards of cases or trajectories, compressed; ``places`` are their anchors, by spaces."""

    places: str
    data: str


@dataclass(frozen=True, slots=True)
class RunPart:
    """A run in the file, with those of its cases and of its trajectories that are in it.

    ``packs`` have the cards of its cases, but for one case alone, which is ``alone``. A folder that holds trajectories
    only has no ``page``.
    """

    place: str
    title: str
    folder: str
    trajectories: ReportedTrajectories
    links: FileLinks = field(default_factory=FileLinks)
    page: RunPage | None = None
    agreements: list[TextTable] = field(default_factory=list)
    alone: Markup | None = None
    packs: list[Pack] = field(default_factory=list)


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
    parts = [_read_run(folder, f"run-{number}", case_id) for number, folder in enumerate(folders, start=1)]
    return render(
        "file.html",
        parts=parts,
        title=", ".join(part.title for part in parts),
        methods=METHODS,
        policy=file_policy(),
        # Our own files, whose hashes the policy names.
        style=Markup(static_file(STYLE_NAME)),  # noqa: S704
        script=Markup(static_file(SCRIPT_NAME)),  # noqa: S704
    )


def _read_run(folder: Path, place: str, case_id: str | None) -> RunPart:
    if has_only_trajectories(folder):
        return RunPart(place, folder.resolve().name, str(folder), read_trajectories(folder, place))
    run = read_run(folder)
    progress = update_index(folder, run)
    try:
        return _run_part(folder, run, progress, place, case_id)
    except RowMoved:
        # The run compacted its results in between.
        return _run_part(folder, run, update_index(folder, run), place, case_id)


def _run_part(folder: Path, run: RunFile, progress: IndexProgress, place: str, case_id: str | None) -> RunPart:
    page = read_run_page(folder, TrialFilter(), progress, choose=functools.partial(_chosen_cases, case_id))
    listed = page.matrix.rows
    links = FileLinks({row.case_id: f"{place}-case-{number}" for number, row in enumerate(listed, start=1)})
    cases = ((row.case_id, read_case_rows(folder, row.case_id)) for row in listed)
    cards = _case_cards(links, place, listed, case_pages(folder, run, cases))
    return RunPart(
        place,
        page.title,
        page.folder,
        read_trajectories(folder, place) if case_id is None else ReportedTrajectories(),
        links,
        page,
        agreement_tables(folder),
        alone=Markup(next(cards)[1]) if len(listed) == 1 else None,  # noqa: S704 -- a page of ours
        packs=list(_packs(cards)),
    )


def _case_cards(
    links: FileLinks, run: str, listed: Sequence[MatrixRow], pages: Iterable[tuple[CasePage, Mapping[str, Note]]]
) -> Iterator[tuple[str, str]]:
    """The anchors and the cards of the cases of a list, each leading to the others; ``run`` is the list's anchor."""
    for number, (page, notes) in enumerate(pages):
        place = links.places[listed[number].case_id]
        card = {"links": links, "run": run, "place": place, "listed": listed, "number": number}
        yield place, render("file_card.html", **card, page=page, notes=notes)


#: So many cases of a run are in a file, with so many bytes of rows; a folder's trajectories have so many bytes too.
#: A browser opens such a file at once.
MAX_CASES, MAX_BYTES = 5_000, 32_000_000


def _chosen_cases(case_id: str | None, index: IndexReader) -> list[CaseEntry]:
    """The cases of a run that go into a file, in the order of the results: the one with this id, if that is given.

    Where there are too many, those that failed or erred come first. Raises `ContentMissing`.
    """
    if case_id is not None:
        case = index.find_case(case_id)
        if case is None:
            raise ContentMissing(f"This run has no row of a case {case_id}")
        return [case]
    failed = index.list_cases(TrialFilter(states=(TrialState.FAILED, TrialState.ERROR)), offset=0, limit=MAX_CASES)
    first = list(dict.fromkeys([*failed, *index.list_cases(TrialFilter(), offset=0, limit=MAX_CASES)]))[:MAX_CASES]
    sizes = (sum(trial.length for trial in index.trials_of(case.case_no)) for case in first)
    return sorted(first[: _count_fitting(sizes)])


def _count_fitting(sizes: Iterable[int]) -> int:
    """How many of the first have at most `MAX_BYTES` in all."""
    return sum(total <= MAX_BYTES for total in itertools.accumulate(sizes))


#: Cards are compressed together until they have so many characters: like texts compress one another.
_PACKED_CHARACTERS = 500_000


def _packs(cards: Iterable[tuple[str, str]]) -> Iterator[Pack]:
    """Compress cards, each with its place."""
    pack: dict[str, str] = {}
    for place, card in cards:
        pack[place] = card
        if sum(map(len, pack.values())) >= _PACKED_CHARACTERS:
            yield _pack(pack)
            pack = {}
    if pack:
        yield _pack(pack)


def _pack(cards: Mapping[str, str]) -> Pack:
    # No card has a NUL: a page shows the code point of one.
    data = zlib.compress("\0".join(cards.values()).encode(), level=9)
    return Pack(" ".join(cards), base64.b64encode(data).decode())


@dataclass(frozen=True, slots=True)
class ReportedTrajectories:
    """The trajectories in the file with their anchors, the newest first, and how many there are in all."""

    listed: list[tuple[str, TrajectoryEntry]] = field(default_factory=list)
    total: int = 0
    packs: list[Pack] = field(default_factory=list)


def read_trajectories(folder: Path, place: str) -> ReportedTrajectories:
    """The trajectories of a folder that go into a file, of the newest; ``place`` is the anchor of their run.

    Where there are too many, those that did not end well come first.
    """
    entries, _ = list_trajectories(folder)
    first = sorted(entries, key=lambda entry: entry.state is RunState.ENDED)
    names = {entry.name for entry in first[: _count_fitting(entry.size for entry in first)]}
    listed: dict[str, TrajectoryEntry] = {}

    def cards() -> Iterator[tuple[str, str]]:
        for entry in entries:
            # One of them may be removed meanwhile.
            with contextlib.suppress(ContentMissing):
                if entry.name in names:
                    record = read_trajectory(folder, entry.name)
                    page = trajectory_page(record, int(time.time() * 1000), 1, rows=sys.maxsize)
                    card = f"{place}-trajectory-{len(listed) + 1}"
                    listed[card] = entry
                    yield card, render("file_card.html", run=place, trajectory=page, note=STATE_NOTES[page.state])

    packs = list(_packs(cards()))
    return ReportedTrajectories(list(listed.items()), len(trajectory_names(folder)), packs)
