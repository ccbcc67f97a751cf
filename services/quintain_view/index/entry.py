"""What the index keeps of one row. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from quintain_runner import Row, RowStatus
from quintain_view.index.schema import NO_SCORE_KEY, Outcome

#: How many characters of one text can be found; a longer text is searched in its beginning.
MAX_SEARCHED_CHARACTERS = 4_000

#: How many characters of a question lists show.
MAX_QUESTION_CHARACTERS = 240


class IndexEntry(NamedTuple):
    """The values of a row by which lists filter and sort; ``failed_graders`` are names."""

    outcome: Outcome
    score: float | None
    score_key: float
    duration_ms: float
    input_tokens: int
    output_tokens: int
    disagreement: float
    failed_graders: tuple[str, ...]
    stale: bool
    counts: bool


def outcome_of(row: Row) -> Outcome:
    """How the trial of a row ended."""
    if row.status is RowStatus.IN_DOUBT:
        return Outcome.IN_DOUBT
    if row.status is RowStatus.ERROR:
        return Outcome.ERROR
    return Outcome.PASSED if row.passed else Outcome.FAILED


def disagreement_of(row: Row) -> float:
    """The distance between the highest and the lowest score that graders gave; 0 with fewer than two scores."""
    scores = [grader.score for grader in row.graders.values() if grader.score is not None]
    return max(scores) - min(scores) if len(scores) > 1 else 0.0


def entry_of(row: Row) -> IndexEntry:
    """What the index keeps of this row."""
    return IndexEntry(
        outcome=outcome_of(row),
        score=row.score,
        score_key=NO_SCORE_KEY if row.score is None else row.score,
        duration_ms=row.duration_ms,
        input_tokens=row.token_usage.input,
        output_tokens=row.token_usage.output,
        disagreement=disagreement_of(row),
        failed_graders=tuple(name for name, grader in row.graders.items() if not grader.passed),
        stale=row.stale is not None,
        counts=row.counts,
    )


def question_text(row: Row) -> str:
    """What was asked, as one text: the question, or the text of the last message; empty if the row has no contents."""
    if row.case is None:
        return ""
    if row.case.question is not None:
        return row.case.question
    contents = [message.content for message in row.case.messages or ()]
    return content_text(contents[-1]) if contents else ""


def content_text(content: str | Sequence[Mapping[str, object]]) -> str:
    """The text parts of a message's content."""
    if isinstance(content, str):
        return content
    return "\n".join(text for part in content if isinstance(text := part.get("text"), str))


def searched_text(row: Row) -> str:
    """The words by which a text filter finds a row: of its id, question, expected and given answer, reasons, error."""
    return "\n".join(text[:MAX_SEARCHED_CHARACTERS] for text in _texts(row) if text)


def _texts(row: Row) -> Iterator[str | None]:
    yield row.case_id
    yield question_text(row)
    if row.case is not None and row.case.expected is not None:
        yield str(row.case.expected)
    yield row.output
    for grader in row.graders.values():
        yield grader.reason
        yield grader.error
    if row.error is not None:
        yield row.error.code
        yield row.error.error
