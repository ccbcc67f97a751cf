"""Compares two runs case by case: what became of each case, by both indexes, and both answers as a page shows them."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import apsw

from quintain.errors import ConfigError
from quintain_runner.report.comparison import (
    CaseChange,
    Comparison,
    case_change,
    comparable_targets,
    compare_runs,
    count_changes,
    has_same_dataset,
)
from quintain_runner.report.comparison_tables import changes_text, comparison_lines, comparison_tables, conclusion
from quintain_runner.report.run_file import read_run
from quintain_runner.report.run_report import RunReport, read_recorded_report
from quintain_runner.report.text_table import TextTable
from quintain_runner.results.row import Row
from quintain_view.case_page import CaseOrigin, CasePage, ShownAnswer, case_page
from quintain_view.folders import results_state
from quintain_view.index_reader import open_index, rows_of_case
from quintain_view.index_writer import index_path
from quintain_view.reading import NotIndexed
from quintain_view.text import TextSpan, word_difference

#: The tab of cases with a trial that only one of the runs has, or has a score of.
ONLY_HERE: Final = "onlyHere"

TAB_WORDS: Final[Mapping[str, str]] = {
    CaseChange.WORSE_IN_EVERY: "worse in every repeat",
    CaseChange.WORSE_IN_SOME: "worse in some",
    CaseChange.BETTER: "better",
    ONLY_HERE: "only here",
    CaseChange.SAME: "as many passes",
}

CASES_PER_PAGE: Final = 10

#: Of larger runs the statistics take more than a second or two.
MAX_COMPARED_TRIALS: Final = 10_000

_TRIALS = """
    SELECT case_id, case_no, repeat, asked * {by_question} AS asked, {side} AS side, outcome < 2 AS graded,
        outcome = 0 AS passed, score
    FROM {schema}.trial JOIN {schema}.case_text USING (case_no) WHERE column_no = ? AND repeat <= ?"""

#: Trials are put together by sorting them: a join of both runs would look at every pair of them.
_CASES = """
    CREATE TEMP TABLE compared AS
    SELECT case_id, min(place) AS place, sum(is_pair) AS repeats, sum(is_pair * before) AS before,
        sum(is_pair * after) AS after, sum(is_one_sided) AS one_sided,
        abs(avg(difference) FILTER (WHERE is_pair)) AS difference
    FROM (
        SELECT case_id, min(case_no) AS place, sum(graded) = 2 AS is_pair,
            count(*) = 1 OR sum(graded) = 1 AS is_one_sided, sum(passed * (1 - side)) AS before,
            sum(passed * side) AS after, sum(score * (2 * side - 1)) AS difference
        FROM ({before} UNION ALL {after}) GROUP BY case_id, repeat, asked
    ) GROUP BY case_id"""

_KINDS = "SELECT repeats, before, after, count(*) FROM temp.compared WHERE repeats GROUP BY 1, 2, 3"
_ONE_SIDED = "SELECT count(*) FROM temp.compared WHERE one_sided"
_LISTED = f"""
    SELECT case_id FROM temp.compared
    WHERE CASE ?1 WHEN '{ONLY_HERE}' THEN one_sided ELSE repeats AND case_change(repeats, before, after) = ?1 END
    ORDER BY difference DESC, place LIMIT ?2 OFFSET ?3"""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the runs, and its compared column with its number in the index."""

    folder: Path
    column: str
    column_no: int
    repeats: int

    @classmethod
    def of(cls, report: RunReport, column: str) -> ComparedRun:
        """The run of this report. Raises `NotIndexed`."""
        with open_index(report.folder) as index:
            if index is None:
                raise NotIndexed
            return cls(report.folder, column, index.columns.get(column, -1), report.run.configuration.repeats)

    def rows(self, case_ids: Sequence[str]) -> list[list[Row]]:
        """The rows of each of these cases, by repeat. Raises `RowMoved`."""
        with open_index(self.folder) as index:
            cases = [None if index is None else index.find_case(case_id) for case_id in case_ids]
            rows = [[] if index is None or case is None else rows_of_case(self.folder, index, case) for case in cases]
        return [[row for row in of_case if self._compares(row)] for of_case in rows]

    def _compares(self, row: Row) -> bool:
        return row.column == self.column and row.repeat <= self.repeats


@dataclass(frozen=True, slots=True)
class CaseChanges:
    """The cases of one target: the tabs with their words and counts, how many chance alone makes worse, the shown tab,
    and the ids of a page of it."""

    tabs: list[tuple[str, str, int]]
    text: str
    by_chance: float
    tab: str
    case_ids: list[str]
    has_next: bool


def read_changes(runs: Sequence[ComparedRun], *, by_question: bool, tab: str, page: int) -> CaseChanges:
    """What became of the cases, and a page of one tab.

    The tab is the first that has any case unless ``tab`` names one. With ``by_question`` a case is another one where
    something else is asked or expected.
    """
    connection = apsw.Connection(str(index_path(runs[0].folder)), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute("ATTACH ? AS later", (str(index_path(runs[1].folder)),))
        connection.create_scalar_function("case_change", lambda *case: str(case_change(*case)), 3, deterministic=True)
        before, after = (
            _TRIALS.format(schema=schema, side=side, by_question=int(by_question))
            for side, schema in enumerate(("main", "later"))
        )
        values = [value for run in runs for value in (run.column_no, run.repeats)]
        connection.execute(_CASES.format(before=before, after=after), values)
        kinds = [(int(repeats), int(old), int(new), count) for repeats, old, new, count in connection.execute(_KINDS)]
        changes, by_chance = count_changes(kinds)
        one_sided = connection.execute(_ONE_SIDED).get
        counts = {name: one_sided if name == ONLY_HERE else changes[CaseChange(name)] for name in TAB_WORDS}
        shown = tab if tab in counts else next((name for name in counts if counts[name]), str(CaseChange.SAME))
        found = connection.execute(_LISTED, (shown, CASES_PER_PAGE + 1, (page - 1) * CASES_PER_PAGE))
        case_ids = [case_id for (case_id,) in found]
        tabs = [(name, words, counts[name]) for name, words in TAB_WORDS.items()]
        listed, has_next = case_ids[:CASES_PER_PAGE], len(case_ids) > CASES_PER_PAGE
        return CaseChanges(tabs, changes_text(changes, by_chance), by_chance, shown, listed, has_next)
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class ComparedRepeat:
    """A repeat in both runs, or in one, and the words in which the answers differ."""

    repeat: int
    answers: tuple[ShownAnswer | None, ShownAnswer | None]
    difference: list[TextSpan]
    is_same: bool

    @property
    def is_change(self) -> bool:
        """Whether it ended in another way, or is in one of the runs only."""
        before, after = self.answers
        return before is None or after is None or before.outcome != after.outcome


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """A case in both runs. ``asked`` has what both asked, or first the one and then the other where they differ."""

    case_id: str
    passed: str
    asked: list[CasePage]
    in_later: bool
    repeats: list[ComparedRepeat]
    first_open: int


def compared_case(case_id: str, rows: Sequence[Sequence[Row]], *, by_question: bool) -> ComparedCase:
    """A case with its rows of both runs."""
    pages = [case_page(case_id, of_run, CaseOrigin()) for of_run in rows]
    before, after = (
        {_place(row, by_question=by_question): (row, answer) for row, answer in zip(of_run, page.answers, strict=True)}
        for of_run, page in zip(rows, pages, strict=True)
    )
    asked = [page for page in pages if page.answers]
    places = sorted({*before, *after})
    repeats = [_compared_repeat(place, before.get(place), after.get(place)) for place in places]
    return ComparedCase(
        case_id=case_id,
        passed=" → ".join(_passed(page.answers) for page in pages),
        asked=asked if len({place[1:] for place in places}) > 1 else asked[-1:],
        in_later=bool(rows[1]),
        repeats=repeats,
        first_open=next((number for number, one in enumerate(repeats) if one.is_change), 0),
    )


def _place(row: Row, *, by_question: bool) -> tuple[int, str, str]:
    """What a trial of the other run must have in common."""
    return (row.repeat, row.fingerprints.input, row.fingerprints.grading) if by_question else (row.repeat, "", "")


def _passed(answers: Sequence[ShownAnswer]) -> str:
    graded = [answer.outcome == "passed" for answer in answers if answer.outcome in {"passed", "failed"}]
    return f"{sum(graded)} of {len(graded)} passed" if graded else "no score"


_Side = tuple[Row, ShownAnswer]


def _compared_repeat(place: tuple[int, str, str], before: _Side | None, after: _Side | None) -> ComparedRepeat:
    texts = [None if side is None else side[0].output for side in (before, after)]
    difference = [] if texts[0] is None or texts[1] is None else word_difference(texts[0], texts[1])
    answers = (None if before is None else before[1], None if after is None else after[1])
    return ComparedRepeat(place[0], answers, difference, is_same=texts[0] is not None and texts[0] == texts[1])


@dataclass(frozen=True, slots=True)
class ComparePage:
    """The comparison of two runs; without ``changes`` where they cannot be compared, as ``conclusion`` says then."""

    before: str
    after: str
    conclusion: str
    tables: list[TextTable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    choices: list[tuple[str, str]] = field(default_factory=list)
    columns: tuple[str, str] = ("", "")
    changes: CaseChanges | None = None
    cases: list[ComparedCase] = field(default_factory=list)
    page: int = 1


def read_compare_page(
    names: tuple[str, str], folders: tuple[Path, Path], target: str, tab: str, *, force: bool, page: int = 1
) -> ComparePage:
    """The comparison of two runs, of other graders and cases too with ``force``. Raises `NotIndexed` and `RowMoved`."""
    before, after = reports = [read_recorded_report(folder, read_run(folder)) for folder in folders]
    try:
        choices = comparable_targets(before, after, force=force)
        states = tuple((report.folder, results_state(report.folder), report.run.ended_at) for report in reports)
        trials = sum(report.summary.total.trials for report in reports)
        compared = _comparison(states, force=force) if trials <= MAX_COMPARED_TRIALS else None
    except ConfigError as error:
        return ComparePage(names[0], names[1], error.message)
    columns = next((choice for choice in choices if choice[0] == target), choices[0])
    runs = [ComparedRun.of(report, column) for report, column in zip(reports, columns, strict=True)]
    by_question = not force and not has_same_dataset(before, after)
    changes = read_changes(runs, by_question=by_question, tab=tab, page=page)
    rows = zip(changes.case_ids, *(run.rows(changes.case_ids) for run in runs), strict=True)
    command = shlex.join(["quintain", "compare", *(str(folder) for folder in folders)])
    return ComparePage(
        before=names[0],
        after=names[1],
        conclusion=conclusion(compared) if compared else f"{command} prints the statistics of runs of this size",
        tables=list(comparison_tables(compared)) if compared else [],
        notes=list(comparison_lines(compared)) if compared else [changes.text],
        choices=choices,
        columns=columns,
        changes=changes,
        cases=[compared_case(case_id, sides, by_question=by_question) for case_id, *sides in rows],
        page=page,
    )


@functools.lru_cache(maxsize=8)
def _comparison(states: tuple[tuple[Path, object, object], ...], *, force: bool) -> Comparison:
    """The comparison of two folders in these states: pages of one comparison do not compute it again."""
    before, after = (read_recorded_report(folder, read_run(folder)) for folder, _, _ in states)
    return compare_runs(before, after, force=force, max_flips=0)
