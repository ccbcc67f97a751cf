"""The bias of positions in multiple choice: which places targets choose, and where they are right. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from pydantic import Field

from quintain.contracts.message import Message
from quintain_runner.results.row import ChoiceRow, Row
from quintain_runner.spec.choices import LETTERS


class PositionCounts(Message):
    """How often the choice at one position was ``chosen``, was ``right``, and was both (``hit``)."""

    chosen: int = 0
    right: int = 0
    hit: int = 0


class ChoiceStatistics(Message):
    """The answers of one column to multiple choice: by the letter of each position. No choice could be read in the
    ``unread`` ones."""

    answers: int = 0
    unread: int = 0
    positions: dict[str, PositionCounts] = Field(default_factory=dict)


class ChoiceCollector:
    """Counts the choices in the rows of these columns, up to a repeat."""

    def __init__(self, columns: Collection[str], repeats: int) -> None:
        self._columns, self._repeats = list(columns), repeats
        self._counts: dict[tuple[str, str], Counter[tuple[str, int]]] = {}

    def passed_through(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows as they come; those of the columns are counted on the way."""
        for row in rows:
            if row.repeat <= self._repeats and row.column in self._columns:
                for name, verdict in row.graders.items():
                    if verdict.choice is not None:
                        self._add(self._counts.setdefault((name, row.column), Counter()), verdict.choice)
            yield row

    @staticmethod
    def _add(counts: Counter[tuple[str, int]], choice: ChoiceRow) -> None:
        counts["answers", 0] += 1
        counts["of", 0] = max(counts["of", 0], choice.of)
        counts.update(("right", position) for position in choice.right)
        if choice.position is None:
            counts["unread", 0] += 1
            return
        counts["chosen", choice.position] += 1
        counts["hit", choice.position] += choice.position in choice.right

    def statistics(self) -> dict[str, dict[str, ChoiceStatistics]]:
        """The statistics by grader and column."""
        found: dict[str, dict[str, ChoiceStatistics]] = {}
        for name, column in sorted(self._counts, key=lambda key: (key[0], self._columns.index(key[1]))):
            counts = self._counts[name, column]
            positions = {
                LETTERS[place]: PositionCounts(
                    chosen=counts["chosen", place], right=counts["right", place], hit=counts["hit", place]
                )
                for place in range(counts["of", 0])
            }
            found.setdefault(name, {})[column] = ChoiceStatistics(
                answers=counts["answers", 0], unread=counts["unread", 0], positions=positions
            )
        return found
