"""The answers of a run with the lowest scores, for the last lines of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from quintain_runner import Row
from quintain_view.index.entry import question_text
from quintain_view.index.filters import SortOrder, TrialFilter, TrialState
from quintain_view.index.reader import open_index
from quintain_view.index.rows import RowMoved, read_rows
from quintain_view.index.schema import Outcome


class WorstAnswer(NamedTuple):
    """An answer that failed; a text is None if the row does not hold it. The texts are as models wrote them."""

    case_id: str
    column: str
    score: float | None
    question: str | None
    expected: str | None
    answer: str | None


def worst_answers(folder: Path, count: int = 3) -> list[WorstAnswer]:
    """The failed answers with the lowest scores, one of each case; none without an index that fits the results."""
    lowest = TrialFilter(states=(TrialState.FAILED,), order=SortOrder.SCORE)
    worst: list[WorstAnswer] = []
    with open_index(folder) as index:
        if index is None:
            return []
        for case in index.list_cases(lowest, offset=0, limit=count):
            failed = [trial for trial in index.trials_of(case.case_no) if trial.outcome is Outcome.FAILED]
            trial = min(failed, key=lambda one: 0.0 if one.score is None else one.score)
            try:
                (row,) = read_rows(folder, [(trial.offset, trial.length)], case.case_id)
            except RowMoved:
                return []
            worst.append(_worst_answer(row))
    return worst


def _worst_answer(row: Row) -> WorstAnswer:
    expected = None if row.case is None else row.case.expected
    shown = expected if expected is None or isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)
    return WorstAnswer(row.case_id, row.column, row.score, question_text(row) or None, shown, row.output)
