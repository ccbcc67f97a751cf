"""What the comparison of two runs shows: how many trials changed, and each of them with both answers. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quintain.web.text import visible
from quintain_runner import Row
from quintain_view.index.pairs import PairChange, TrialPair
from quintain_view.pages.case_page import OUTCOME_WORDS
from quintain_view.pages.text import ShownText, json_text, shown

CHANGE_WORDS = {
    PairChange.BROKEN: "passed before, fails now",
    PairChange.FIXED: "failed before, passes now",
    PairChange.WORSE: "lower score",
    PairChange.BETTER: "higher score",
    PairChange.OTHER: "an error or a call in doubt in one of them",
    PairChange.SAME: "the same",
}

#: How many characters of a text a line of the comparison shows.
MAX_LINE_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """One of the two answers of a trial."""

    outcome: str
    score: float | None
    text: ShownText | None


@dataclass(frozen=True, slots=True)
class ComparedTrial:
    """A trial in both runs."""

    case_id: str
    shown_id: str
    repeat: int
    question: ShownText | None
    expected: ShownText | None
    before: ComparedAnswer
    after: ComparedAnswer


@dataclass(frozen=True, slots=True)
class ComparePage:
    """The comparison of two columns of two runs."""

    before: str
    after: str
    columns: tuple[str, str]
    choices: list[tuple[str, str]]
    counts: dict[PairChange, int]
    change: PairChange
    trials: list[ComparedTrial]
    page: int
    has_next: bool


def column_choices(before: Sequence[str], after: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of columns that can be compared: those with one name, or the only one of each run."""
    shared = [(name, name) for name in before if name in after]
    return shared or ([(before[0], after[0])] if len(before) == len(after) == 1 else [])


def compared_trial(pair: TrialPair, rows: tuple[Row, Row]) -> ComparedTrial:
    """One line of the comparison."""
    case = rows[0].case or rows[1].case
    question = None if case is None or case.question is None else case.question
    expected = None if case is None or case.expected is None else json_text(case.expected)
    before, after = (_answer(pair, row, number) for number, row in enumerate(rows))
    return ComparedTrial(
        case_id=pair.case_id,
        shown_id=visible(pair.case_id),
        repeat=pair.repeat,
        question=None if question is None else shown(question, MAX_LINE_CHARACTERS),
        expected=None if expected is None else shown(expected, MAX_LINE_CHARACTERS),
        before=before,
        after=after,
    )


def _answer(pair: TrialPair, row: Row, number: int) -> ComparedAnswer:
    text = row.output if row.output is not None else None if row.error is None else row.error.error
    return ComparedAnswer(
        OUTCOME_WORDS[pair.outcomes[number]],
        pair.scores[number],
        None if text is None else shown(text, MAX_LINE_CHARACTERS),
    )
