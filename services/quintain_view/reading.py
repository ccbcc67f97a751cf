"""Reads what pages show, from the index, the results and the record of a run. Called in threads."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from quintain.contracts.invoke import TokenUsage
from quintain.fleet.tables import duration
from quintain_runner.report.run_file import RunFile, read_run
from quintain_runner.report.run_report import read_recorded_report
from quintain_runner.results.bill import dollars
from quintain_runner.results.labels import Note, NoteKey, latest_notes, read_notes
from quintain_runner.results.row import GraderRow, Row
from quintain_view.case_page import CaseOrigin, CasePage, ShownCall, case_page, target_call_ids
from quintain_view.filters import TrialFilter
from quintain_view.index_reader import CaseEntry, IndexReader, open_index, rows_of_case
from quintain_view.index_schema import NO_COUNTS, ColumnCounts
from quintain_view.index_writer import IndexProgress
from quintain_view.run_list import RunSource
from quintain_view.run_page import CASES_PER_PAGE, MatrixView, RunContents, RunPage, matrix, run_page
from quintain_view.timeline import MAX_SHOWN_STEPS

CALLS_FILE_NAME = "calls.jsonl"

#: The calls of graders are looked for in files up to this size; in larger ones that would take more than a second.
_MAX_SEARCHED_CALLS_BYTES = 64_000_000


class NotIndexed(Exception):
    """The folder has no index yet: nothing of its rows can be shown."""


class ContentMissing(Exception):
    """There is no such case or trial in the run. The message says which."""


def read_run_page(
    folder: Path,
    trial_filter: TrialFilter,
    progress: IndexProgress,
    *,
    page: int = 1,
    choose: Callable[[IndexReader], list[CaseEntry]] | None = None,
) -> RunPage:
    """The page of a run, with a page of its list or with the cases that are chosen.

    Raises `ConfigError` without a record, and `NotIndexed`.
    """
    run = read_run(folder)
    report = read_recorded_report(folder, run)
    with open_index(folder) as index:
        if index is None:
            columns = {name: number for number, name in enumerate(run.configuration.columns)}
            empty = matrix([], MatrixView(columns, {}, None), trial_filter, count=0, page=1)
            return run_page(report, empty, trial_filter, contents=RunContents(), progress=progress)
        if choose is None:
            limit = CASES_PER_PAGE
            cases, count = index.list_page(trial_filter, offset=(page - 1) * limit, limit=limit + 1)
        else:
            cases, count = choose(index), index.count_all_cases()
            limit = len(cases)
        listed = [(case, index.trials_of(case.case_no)) for case in cases]
        view = MatrixView(index.columns, index.graders, run.configuration.reduce.row)
        return run_page(
            report,
            matrix(listed, view, trial_filter, count=count, page=page, limit=limit),
            trial_filter,
            contents=RunContents(column_counts(index, run), list(index.graders), index.tag_fields(), index.count_cases),
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
            raise ContentMissing(f"This run has no row of a case {case_id}")
        return rows_of_case(folder, index, case)


def read_case_page(folder: Path, case_id: str, max_steps: int = MAX_SHOWN_STEPS) -> tuple[CasePage, dict[str, Note]]:
    """The page of a case, and the notes about its answers. Raises as `read_case_rows`."""
    cases = [(case_id, read_case_rows(folder, case_id))]
    return next(case_pages(folder, read_run(folder), cases, max_steps=max_steps))


def case_pages(
    folder: Path, run: RunFile, cases: Iterable[tuple[str, Sequence[Row]]], *, max_steps: int = MAX_SHOWN_STEPS
) -> Iterator[tuple[CasePage, dict[str, Note]]]:
    """The pages of cases with their rows, and the notes about their answers by trial."""
    notes, lines = latest_notes(read_notes(folder)), _lines_by_call(folder)
    for case_id, rows in cases:
        origin = CaseOrigin(run.configuration.evaluation, str(folder), _calls(lines, run, rows), run.judges)
        by_trial = {trial_id(row): notes.get(NoteKey.of(row)) for row in rows}
        page = case_page(case_id, rows, origin, max_steps)
        yield page, {trial: note for trial, note in by_trial.items() if note is not None}


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


def next_failure(folder: Path, trial_filter: TrialFilter, place: int, step: int) -> tuple[str, int] | None:
    """The id and the place of the next case of a list with a failure, or of the previous one for a ``step`` of -1.

    Where there is none it is the case at ``place`` itself; None if the list has none there.
    """
    with open_index(folder) as index:
        if index is None:
            return None
        found = index.next_failure(trial_filter, place, step)
        return None if found is None else (index.case(found[0]).case_id, found[1])


def _lines_by_call(folder: Path) -> dict[str, list[bytes]]:
    """The lines of ``calls.jsonl`` by request id and by session id; none of a file that is too large."""
    path = folder / CALLS_FILE_NAME
    found: dict[str, list[bytes]] = {}
    with contextlib.suppress(OSError):
        if path.stat().st_size <= _MAX_SEARCHED_CALLS_BYTES:
            for line in path.read_bytes().split(b"\n"):
                for match in _CALL_IDS.finditer(line):
                    found.setdefault(match[1].decode(errors="replace"), []).append(line)
    return found


def _with_inner(grader: GraderRow) -> Iterator[GraderRow]:
    """The verdict of a grader, the votes of a jury, and the verdicts of a list's graders."""
    yield grader
    for one in (*grader.votes.values(), *grader.parts.values()):
        yield from _with_inner(one)


def _calls(lines: Mapping[str, list[bytes]], run: RunFile, rows: Sequence[Row]) -> dict[str, list[ShownCall]]:
    """The calls of the rows' targets and graders, by request id and by session id."""
    graders = [one for row in rows for grader in row.graders.values() for one in _with_inner(grader)]
    wanted = {key for grader in graders for key in (grader.request_id, grader.session_id) if key}
    wanted.update(key for row in rows for key in target_call_ids(row))
    found: dict[str, list[ShownCall]] = {}
    for key in wanted:
        for fields in map(_fields, lines.get(key, ())):
            if key in {fields.get("requestId"), fields.get("sessionId")}:
                found.setdefault(key, []).append(_shown_call(fields, run))
    return found


#: The ids of a line of calls; those that Quintain makes have no escaped character.
_CALL_IDS = re.compile(rb'"(?:requestId|sessionId)": ?"([^"\\]*)"')


def _fields(line: bytes) -> dict[str, object]:
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


#: What the states of calls in ``calls.jsonl`` say of their charge.
_CHARGE_WORDS = {
    "committed": "charged",
    "refunded": "not charged",
    "inDoubt": "in doubt: it stays charged, and its outcome is not known",
}


def _shown_call(fields: Mapping[str, object], run: RunFile) -> ShownCall:
    state, target = str(fields.get("state")), str(fields.get("target"))
    created, updated = fields.get("createdAt"), fields.get("updatedAt")
    parts = [_CHARGE_WORDS.get(state, state), target]
    parts += [duration(updated - created)] if isinstance(created, int) and isinstance(updated, int) else []
    usage, price = fields.get("tokenUsage"), run.prices.get(target)
    with contextlib.suppress(ValidationError):
        used = TokenUsage.model_validate(usage)
        parts.append(f"{used.input:,} in, {used.output:,} out")
        parts += [dollars(price.of_call(used))] if price is not None else []
    names = {"requestId": "request id", "attempts": "attempts", "faultCode": "fault"}
    shown = [(words, str(fields[name])) for name, words in names.items() if fields.get(name) not in {None, 1}]
    return ShownCall(" · ".join(parts), shown)
