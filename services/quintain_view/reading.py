"""Reads what pages show, from the index, the results and the record of a run. Called in threads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from quintain.web import visible
from quintain_runner.report.run_file import RunFile, read_run
from quintain_runner.report.run_report import read_recorded_report
from quintain_runner.results.labels import Note, NoteKey, latest_notes, read_notes
from quintain_runner.results.row import Row
from quintain_view.case_page import CasePage, JudgeCall, case_page
from quintain_view.comparison import ComparePage, PairChange, PairReader, column_choices, compared_trial
from quintain_view.filters import TrialFilter
from quintain_view.index_reader import IndexReader, open_index, read_rows, rows_of_case
from quintain_view.index_schema import NO_COUNTS, ColumnCounts
from quintain_view.index_writer import IndexProgress
from quintain_view.run_list import RunSource
from quintain_view.run_page import CASES_PER_PAGE, RunPage, matrix, run_page
from quintain_view.timeline import MAX_SHOWN_STEPS

CALLS_FILE_NAME = "calls.jsonl"

#: The calls of graders are looked for in files up to this size; in larger ones that would take more than a second.
_MAX_SEARCHED_CALLS_BYTES = 64_000_000


class NotIndexed(Exception):
    """The folder has no index yet: nothing of its rows can be shown."""


class ContentMissing(Exception):
    """There is no such case or trial in the run. The message says which."""


def read_run_page(folder: Path, trial_filter: TrialFilter, progress: IndexProgress, *, page: int = 1) -> RunPage:
    """The page of a run. Raises `ConfigError` without a record, and `NotIndexed`."""
    run = read_run(folder)
    with open_index(folder) as index:
        if index is None:
            columns: dict[str, int] = {name: number for number, name in enumerate(run.configuration.columns)}
            empty = matrix([], columns, trial_filter, count=0, page=1)
            return run_page(
                read_recorded_report(folder, run), empty, trial_filter, counts={}, graders=[], progress=progress
            )
        counts = column_counts(index, run)
        cases, count = index.list_page(trial_filter, offset=(page - 1) * CASES_PER_PAGE, limit=CASES_PER_PAGE + 1)
        listed = [(case, index.trials_of(case.case_no)) for case in cases]
        page_matrix = matrix(listed, index.columns, trial_filter, count=count, page=page)
        return run_page(
            read_recorded_report(folder, run),
            page_matrix,
            trial_filter,
            counts=counts,
            graders=list(index.graders),
            progress=progress,
        )


def column_counts(index: IndexReader, run: RunFile) -> Mapping[str, ColumnCounts]:
    """The counts of each column: of the record first, in its order, then of others in the index."""
    counted = index.column_counts()
    return {name: counted.get(name, NO_COUNTS) for name in dict.fromkeys([*run.configuration.columns, *index.columns])}


def with_counts(source: RunSource) -> RunSource:
    """A run of the list; one that has not ended with what its index has of it, if there is an index."""
    if source.run is None or not source.is_open:
        return source
    with open_index(Path(source.folder)) as index:
        if index is None:
            return source
        by_column = column_counts(index, source.run)
    counts = [by_column[name] for name in source.run.configuration.columns]
    passed = sum(one.passed for one in counts)
    return replace(source, counted=(passed + sum(one.failed for one in counts), passed))


def read_case_rows(folder: Path, case_id: str) -> list[Row]:
    """The rows of a case, by column and repeat. Raises `ContentMissing`, `NotIndexed` and `RowMoved`."""
    with open_index(folder) as index:
        if index is None:
            raise NotIndexed
        case = index.find_case(case_id)
        if case is None:
            raise ContentMissing(f"This run has no row of a case {visible(case_id)}")
        return rows_of_case(folder, index, case)


def read_case_page(folder: Path, case_id: str) -> tuple[CasePage, dict[str, Note]]:
    """The page of a case, and the notes about its answers. Raises as `read_case_rows`."""
    return build_case_page(folder, read_run(folder), case_id, read_case_rows(folder, case_id))


def build_case_page(
    folder: Path, run: RunFile, case_id: str, rows: Sequence[Row], *, max_steps: int = MAX_SHOWN_STEPS
) -> tuple[CasePage, dict[str, Note]]:
    """The page of a case with these rows, and the notes about its answers by trial."""
    page = case_page(
        case_id,
        rows,
        evaluation=run.configuration.evaluation,
        folder=str(folder),
        calls=_judge_calls(folder, rows),
        max_steps=max_steps,
    )
    notes = latest_notes(read_notes(folder))
    by_trial = {trial_id(row): notes.get(NoteKey.of(row)) for row in rows}
    return page, {trial: note for trial, note in by_trial.items() if note is not None}


def trial_id(row: Row) -> str:
    """The name of a trial within its case."""
    return f"{row.column}#{row.repeat}"


def neighbors(folder: Path, trial_filter: TrialFilter, place: int) -> tuple[str | None, str | None]:
    """The ids of the cases before and after a place of a list; None where there is none."""
    with open_index(folder) as index:
        if index is None or place < 0:
            return None, None
        begin = max(0, place - 1)
        ids = [case.case_id for case in index.list_cases(trial_filter, offset=begin, limit=place - begin + 2)]
    before = ids[0] if place > 0 and ids else None
    after = ids[place - begin + 1] if len(ids) > place - begin + 1 else None
    return before, after


def read_compare_page(
    names: tuple[str, str], folders: tuple[Path, Path], target: str, change: str, *, page: int = 1
) -> ComparePage:
    """The comparison of two runs. Raises `ContentMissing` if no target is in both, `NotIndexed` and `RowMoved`."""
    columns = []
    for folder in folders:
        with open_index(folder) as index:
            if index is None:
                raise NotIndexed
            columns.append(list(index.columns))
    choices = column_choices(*columns)
    if not choices:
        raise ContentMissing("No target is in both runs, and they do not have one target each")
    chosen = next((choice for choice in choices if choice[0] == target), choices[0])
    reader = PairReader(folders, chosen)
    try:
        counts = reader.counts()
        default = next((name for name in PairChange if counts[name]), PairChange.SAME)
        wanted = PairChange(change) if change in set(PairChange) else default
        pairs = reader.pairs(wanted, offset=(page - 1) * CASES_PER_PAGE, limit=CASES_PER_PAGE + 1)
    finally:
        reader.close()
    rows = [read_rows(folder, [pair.places[side] for pair in pairs]) for side, folder in enumerate(folders)]
    trials = [compared_trial(pair, sides) for pair, sides in zip(pairs, zip(*rows, strict=True), strict=True)]
    return ComparePage(
        before=visible(names[0]),
        after=visible(names[1]),
        columns=chosen,
        choices=choices,
        counts=counts,
        change=wanted,
        trials=trials[:CASES_PER_PAGE],
        page=page,
        has_next=len(trials) > CASES_PER_PAGE,
    )


def _judge_calls(folder: Path, rows: Iterable[Row]) -> dict[str, list[JudgeCall]]:
    """The calls of the rows' graders in ``calls.jsonl``, by request id and by session id."""
    graders = [one for row in rows for grader in row.graders.values() for one in (grader, *grader.votes.values())]
    wanted = {key for grader in graders for key in (grader.request_id, grader.session_id) if key}
    path = folder / CALLS_FILE_NAME
    try:
        if not wanted or path.stat().st_size > _MAX_SEARCHED_CALLS_BYTES:
            return {}
        lines = path.read_bytes().splitlines()
    except OSError:
        return {}
    keys = [key.encode() for key in wanted]
    found: dict[str, list[JudgeCall]] = {}
    for line in lines:
        if any(key in line for key in keys):
            fields = _fields(line)
            for name in {fields.get("requestId"), fields.get("sessionId")} & wanted:
                found.setdefault(str(name), []).append(_judge_call(fields))
    return found


def _fields(line: bytes) -> dict[str, object]:
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _judge_call(fields: Mapping[str, object]) -> JudgeCall:
    created, updated = fields.get("createdAt"), fields.get("updatedAt")
    took = f", {updated - created:,} ms" if isinstance(created, int) and isinstance(updated, int) else ""
    title = visible(f"{fields.get('target')}: {fields.get('state')}{took}")
    names = ("requestId", "sessionId", "attempts", "tokenUsage", "faultCode")
    return JudgeCall(title, [(name, visible(str(fields[name]))) for name in names if fields.get(name) is not None])
