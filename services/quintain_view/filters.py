"""The filters and the order of a list of trials, in a page's address and as SQL. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from urllib.parse import urlencode

from quintain_view.index_schema import Outcome


class TrialState(StrEnum):
    """What a filter may ask of a trial."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    IN_DOUBT = "inDoubt"
    STALE = "stale"


class SortOrder(StrEnum):
    """The order of a list: as the results have the cases, or the most remarkable first."""

    CASE = "case"
    SCORE = "score"
    DURATION = "duration"
    COST = "cost"
    DISAGREEMENT = "disagreement"


_OUTCOMES: Final = {
    TrialState.PASSED: Outcome.PASSED,
    TrialState.FAILED: Outcome.FAILED,
    TrialState.ERROR: Outcome.ERROR,
    TrialState.IN_DOUBT: Outcome.IN_DOUBT,
}

#: The columns by which each order sorts; the index of `ORDER_INDEXES` begins with them.
_ORDER_COLUMNS: Final = {
    SortOrder.CASE: "case_no",
    SortOrder.SCORE: "score_key",
    SortOrder.DURATION: "duration_ms DESC",
    SortOrder.COST: "cost DESC",
    SortOrder.DISAGREEMENT: "disagreement DESC",
}

#: As the text index cuts texts: letters and digits. FTS5 takes these letters of two scripts for no letters: it makes a
#: phrase of a word with one of them, and an index without positions cannot look for phrases.
_WORD = re.compile(r"[^\W_\u19b0-\u19c9\u1cf2\u1cf3]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFilter:
    """Which trials a list shows, and in what order. A case is in the list if one of its trials is.

    ``columns`` are names of columns (a target, or a target under a prompt), ``grader`` one that failed the answer,
    ``words`` beginnings of words that the trial's texts hold, ``least`` and ``most`` the range of its score.
    """

    columns: tuple[str, ...] = ()
    states: tuple[TrialState, ...] = ()
    grader: str = ""
    words: str = ""
    least: float | None = None
    most: float | None = None
    order: SortOrder = SortOrder.CASE

    @classmethod
    def from_query(cls, query: Iterable[tuple[str, str]]) -> TrialFilter:
        """The filter in a page's address; what it cannot hold is left out."""
        pairs = list(query)

        def values(name: str) -> list[str]:
            return [value for key, value in pairs if key == name and value]

        orders = [value for value in values("sort") if value in set(SortOrder)]
        return cls(
            columns=tuple(dict.fromkeys(values("target"))),
            states=tuple(TrialState(value) for value in dict.fromkeys(values("show")) if value in set(TrialState)),
            grader="".join(values("grader")[:1]),
            words="".join(values("q")[:1]),
            least=_number(values("min")),
            most=_number(values("max")),
            order=SortOrder(orders[0]) if orders else SortOrder.CASE,
        )

    def to_query(self, **more: str | int) -> str:
        """The filter as the query of an address, with these parameters added."""
        pairs: list[tuple[str, str | int | float]] = [("target", column) for column in self.columns]
        pairs += [("show", str(state)) for state in self.states]
        named = {"grader": self.grader, "q": self.words, "min": self.least, "max": self.most}
        pairs += [(name, value) for name, value in named.items() if value not in {"", None}]
        pairs += [("sort", str(self.order))] if self.order is not SortOrder.CASE else []
        return urlencode([*pairs, *more.items()])

    @property
    def is_narrowed(self) -> bool:
        """Whether it leaves anything out."""
        return self != replace(TrialFilter(), order=self.order)

    @property
    def word_list(self) -> list[str]:
        """The words: what is found has a word that begins with each of them."""
        return _WORD.findall(self.words)

    def conditions(self, columns: Mapping[str, int], graders: Mapping[str, int]) -> list[SqlCondition]:
        """The conditions on the table ``trial``, without the words; names are those of the index, with their numbers.

        A list has what any of them finds. In the order of the results there is one for each outcome, because an index
        has the trials of one outcome in that order.
        """
        terms = list(self._terms(columns, graders))
        outcomes = [int(_OUTCOMES[state]) for state in self.states if state in _OUTCOMES]
        if not outcomes:
            return [SqlCondition.all_of(terms)]
        if self.order is SortOrder.CASE:
            return [SqlCondition.all_of([SqlCondition("outcome = ?", (one,)), *terms]) for one in outcomes]
        return [SqlCondition.all_of([_one_of("outcome", outcomes), *terms])]

    def _terms(self, columns: Mapping[str, int], graders: Mapping[str, int]) -> Iterator[SqlCondition]:
        if self.columns:
            yield _one_of("column_no", [columns[name] for name in self.columns if name in columns])
        if TrialState.STALE in self.states:
            yield SqlCondition("stale = 1")
        if self.grader:
            known = self.grader in graders
            yield SqlCondition("failed_graders & ? != 0", (1 << graders[self.grader],)) if known else SqlCondition("0")
        # A plus sign keeps SQLite from the index by score, whose order would be another one.
        score = "score_key" if self.order is SortOrder.SCORE else "+score_key"
        if self.least is not None:
            yield SqlCondition(f"{score} >= ?", (self.least,))
        if self.most is not None or self.least is not None:
            yield SqlCondition(f"{score} <= ?", (1.0 if self.most is None else self.most,))

    @property
    def index_name(self) -> str:
        """The index of `ORDER_INDEXES` in whose order the list is; empty for the order of the table itself."""
        if self.order is not SortOrder.CASE:
            return f"trial_by_{self.order}"
        if any(state in _OUTCOMES for state in self.states):
            return "trial_by_outcome"
        return "trial_stale" if TrialState.STALE in self.states else ""

    @property
    def sort_columns(self) -> str:
        """The SQL of the order."""
        return _ORDER_COLUMNS[self.order]


@dataclass(frozen=True, slots=True)
class SqlCondition:
    """A condition in SQL, and the values of its placeholders."""

    sql: str
    values: tuple[str | float, ...] = ()

    @classmethod
    def all_of(cls, terms: Iterable[SqlCondition]) -> SqlCondition:
        """All of these conditions; none is true of everything."""
        terms = list(terms)
        return cls(
            " AND ".join(term.sql for term in terms) or "1", tuple(value for term in terms for value in term.values)
        )


def _one_of(column: str, values: Sequence[int]) -> SqlCondition:
    return SqlCondition(f"{column} IN ({', '.join('?' * len(values))})", tuple(values))


def _number(texts: Sequence[str]) -> float | None:
    try:
        number = float(texts[0]) if texts else None
    except ValueError:
        return None
    # Only of NaN this is not true.
    return number if number is not None and number == number else None  # noqa: PLR0124
