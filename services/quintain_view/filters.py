"""The filters and the order of a list of trials, in a page's address and as SQL. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import urlencode

from quintain_view.index_schema import MAX_BITS, SCORE_UNITS, Outcome, whole


class TrialState(StrEnum):
    """What a filter may ask of a trial."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    IN_DOUBT = "inDoubt"
    UNCOMPARED = "uncompared"


class Repeats(StrEnum):
    """Of which repeats a filter by columns asks an outcome: of what they are reduced to, of any, or of all."""

    REDUCED = "reduced"
    ANY = "any"
    ALL = "all"


class SortOrder(StrEnum):
    """The order of a list: as the results have the cases, the most remarkable first, or by a grader or a tag."""

    CASE = "case"
    SCORE = "score"
    DURATION = "duration"
    COST = "cost"
    TOKENS = "tokens"
    DISAGREEMENT = "disagreement"
    GRADER = "grader"
    TAG = "tag"


class Shown(NamedTuple):
    """What a list is ordered by, or what its cells show; ``name`` is that of a grader or of a tag's field."""

    kind: SortOrder
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Shown | None:
        """Of ``duration`` or ``grader:judge``; None of what is neither."""
        kind, _, name = text.partition(":")
        is_named = kind in {SortOrder.GRADER, SortOrder.TAG}
        return cls(SortOrder(kind), name) if kind in set(SortOrder) and is_named == bool(name) else None

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)


IN_ORDER: Final = Shown(SortOrder.CASE)

#: Where words are looked for: the columns of the text index.
SCOPES: Final = ("question", "answer", "reason")

OUTCOMES: Final = {
    TrialState.PASSED: Outcome.PASSED,
    TrialState.FAILED: Outcome.FAILED,
    TrialState.ERROR: Outcome.ERROR,
    TrialState.IN_DOUBT: Outcome.IN_DOUBT,
    TrialState.UNCOMPARED: Outcome.UNCOMPARED,
}

#: What each order sorts by; the index of `ORDER_INDEXES` begins with it.
_ORDER_COLUMNS: Final = {
    SortOrder.CASE: "case_no",
    SortOrder.SCORE: "score_units",
    SortOrder.DURATION: "duration_ms DESC",
    SortOrder.COST: "cost_units DESC",
    SortOrder.TOKENS: "input_tokens + output_tokens DESC",
    SortOrder.DISAGREEMENT: "disagreement_units DESC",
    SortOrder.GRADER: "value",
    SortOrder.TAG: "value",
}

#: A phrase in quotes, also one whose end is not typed yet, or words.
_TERM = re.compile(r'"([^"]*)"?|([^"]+)')

#: As the text index cuts texts: letters and digits.
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFilter:
    """Which trials a list shows, and in what order. A case is in the list if one of its trials is.

    ``columns`` are names of columns (a target, or a target under a prompt), ``grader`` one that failed the answer,
    ``words`` beginnings of words that the trial's texts hold, and phrases in quotes, in all texts or in those of
    ``scope``; ``least`` and ``most`` are the range of its score. ``outcomes`` are of the case: what its ``repeats``
    came to in each of these columns. ``shown`` is what the cells of the list show.
    """

    columns: tuple[str, ...] = ()
    states: tuple[TrialState, ...] = ()
    grader: str = ""
    words: str = ""
    scope: str = ""
    least: float | None = None
    most: float | None = None
    outcomes: tuple[tuple[str, TrialState], ...] = ()
    repeats: Repeats = Repeats.REDUCED
    order: Shown = IN_ORDER
    shown: tuple[Shown, ...] = ()

    @classmethod
    def from_query(cls, query: Iterable[tuple[str, str]]) -> TrialFilter:
        """The filter in a page's address; what it cannot hold is left out."""
        pairs = list(query)

        def values(name: str) -> list[str]:
            return [value for key, value in pairs if key == name and value]

        asked = [(name, state) for name, _, state in (value.rpartition(":") for value in values("is"))]
        shown = [Shown.parse(value) for value in values("col")]
        return cls(
            columns=tuple(dict.fromkeys(values("target"))),
            states=tuple(TrialState(value) for value in dict.fromkeys(values("show")) if value in set(TrialState)),
            grader="".join(values("grader")[:1]),
            words="".join(values("q")[:1]),
            scope=next((value for value in values("in") if value in SCOPES), ""),
            least=_number(values("min")),
            most=_number(values("max")),
            outcomes=tuple((name, TrialState(state)) for name, state in dict(asked).items() if state in OUTCOMES),
            repeats=next((Repeats(value) for value in values("repeats") if value in set(Repeats)), Repeats.REDUCED),
            order=next((one for one in map(Shown.parse, values("sort")) if one is not None), IN_ORDER),
            shown=tuple(dict.fromkeys(one for one in shown if one is not None)),
        )

    def to_query(self, **more: str | int) -> str:
        """The filter as the query of an address, with these parameters added."""
        pairs: list[tuple[str, str | int | float]] = [("target", column) for column in self.columns]
        pairs += [("show", str(state)) for state in self.states]
        pairs += [("is", f"{column}:{state}") for column, state in self.outcomes]
        named = {"grader": self.grader, "q": self.words, "in": self.scope, "min": self.least, "max": self.most}
        pairs += [(name, value) for name, value in named.items() if value not in {"", None}]
        pairs += [("repeats", str(self.repeats))] if self.repeats is not Repeats.REDUCED else []
        pairs += [("sort", str(self.order))] if self.order != IN_ORDER else []
        pairs += [("col", str(one)) for one in self.shown]
        return urlencode([*pairs, *more.items()])

    @property
    def bare(self) -> TrialFilter:
        """What it leaves out and nothing else: without its order, and what cells show."""
        scope = self.scope if self.terms else ""
        repeats = self.repeats if self.outcomes else Repeats.REDUCED
        return replace(self, order=IN_ORDER, shown=(), scope=scope, repeats=repeats)

    @property
    def is_narrowed(self) -> bool:
        """Whether it leaves anything out."""
        return self.bare != _EVERYTHING

    @property
    def terms(self) -> list[tuple[bool, str]]:
        """The words, each found by its beginning, and the phrases, for which the first value is True."""
        found: list[tuple[bool, str]] = []
        for match in _TERM.finditer(self.words):
            words = _WORD.findall(match[1] if match[2] is None else match[2])
            is_phrase = match[2] is None and len(words) > 0
            found += [(True, " ".join(words))] if is_phrase else [(False, word) for word in words]
        return found

    def parts(self) -> Iterator[tuple[str, TrialFilter]]:
        """Each of the filter's conditions in words, and the filter without it."""
        if self.words:
            where = f" in the {self.scope}" if self.scope else ""
            yield f"{self.words}{where}", replace(self, words="", scope="")
        if self.columns:
            yield f"target {', '.join(self.columns)}", replace(self, columns=())
        for column, state in self.outcomes:
            how = {Repeats.REDUCED: "", Repeats.ANY: " in any repeat", Repeats.ALL: " in all repeats"}[self.repeats]
            left = tuple(one for one in self.outcomes if one != (column, state))
            yield f"{column} {STATE_WORDS[state]}{how}", replace(self, outcomes=left)
        if self.states:
            yield " or ".join(STATE_WORDS[state] for state in self.states), replace(self, states=())
        if self.grader:
            yield f"failed by {self.grader}", replace(self, grader="")
        if self.least is not None or self.most is not None:
            low, high = 0 if self.least is None else self.least, 1 if self.most is None else self.most
            yield f"score from {low:g} to {high:g}", replace(self, least=None, most=None)

    def conditions(self, columns: Mapping[str, int], graders: Mapping[str, int]) -> list[SqlCondition]:
        """The conditions on the table ``trial``, without the words; names are those of the index, with their numbers.

        A list has what any of them finds. In the order of the results there is one for each outcome, because an index
        has the trials of one outcome in that order.
        """
        terms = list(self._terms(columns, graders))
        outcomes = [int(OUTCOMES[state]) for state in self.states if state in OUTCOMES]
        if not outcomes:
            return [SqlCondition.all_of(terms)]
        if self.order.kind is SortOrder.CASE:
            return [SqlCondition.all_of([SqlCondition("outcome = ?", (one,)), *terms]) for one in outcomes]
        return [SqlCondition.all_of([_one_of("outcome", outcomes), *terms])]

    def case_condition(self, columns: Mapping[str, int]) -> SqlCondition:
        """The condition on the table ``case_state``."""
        return SqlCondition.all_of(self._case_terms(columns))

    def _case_terms(self, columns: Mapping[str, int]) -> Iterator[SqlCondition]:
        for column, state in self.outcomes:
            number, outcome = columns.get(column, MAX_BITS), int(OUTCOMES[state])
            if number >= MAX_BITS:
                yield SqlCondition("0")
                continue
            kind = "reduced" if self.repeats is Repeats.REDUCED else "any"
            yield SqlCondition(f"{kind}_{outcome} & ? != 0", (1 << number,))
            if self.repeats is Repeats.ALL:
                others = " | ".join(f"any_{int(one)}" for one in Outcome if one != outcome)
                yield SqlCondition(f"({others}) & ? = 0", (1 << number,))

    def _terms(self, columns: Mapping[str, int], graders: Mapping[str, int]) -> Iterator[SqlCondition]:
        if self.columns:
            yield _one_of("column_no", [columns[name] for name in self.columns if name in columns])
        if self.grader:
            bit = graders.get(self.grader, MAX_BITS)
            yield SqlCondition("failed_graders & ? != 0", (1 << bit,)) if bit < MAX_BITS else SqlCondition("0")
        # A plus sign keeps SQLite from the index by score, whose order would be another one.
        score = "score_units" if self.order.kind is SortOrder.SCORE else "+score_units"
        if self.least is not None:
            yield SqlCondition(f"{score} >= ?", (whole(self.least * SCORE_UNITS),))
        if self.most is not None or self.least is not None:
            yield SqlCondition(f"{score} <= ?", (whole((1.0 if self.most is None else self.most) * SCORE_UNITS),))

    @property
    def index_name(self) -> str:
        """The index of `ORDER_INDEXES` in whose order the list is; empty for the order of a table itself."""
        if self.order.name:
            return ""
        if self.order.kind is not SortOrder.CASE:
            return f"trial_by_{self.order.kind}"
        return "trial_by_outcome" if any(state in OUTCOMES for state in self.states) else ""

    def sorted_table(self, graders: Mapping[str, int]) -> tuple[str, SqlCondition] | None:
        """The table, and the condition on it, of an order in which only some trials have a place; None of others."""
        match self.order.kind:
            case SortOrder.GRADER:
                # The outcome is in both, so that only the trials of a filter's outcomes are looked up.
                table = "grader_score CROSS JOIN trial USING (case_no, column_no, repeat, outcome)"
                return table, SqlCondition("bit = ?", (graders.get(self.order.name, -1),))
            case SortOrder.TAG:
                return "case_tag CROSS JOIN trial USING (case_no)", SqlCondition("field = ?", (self.order.name,))
            case SortOrder.COST | SortOrder.DISAGREEMENT:
                return "trial", SqlCondition(f"{self.order.kind}_units > 0")
        return None

    @property
    def sort_columns(self) -> str:
        """The SQL of the order."""
        return _ORDER_COLUMNS[self.order.kind]


_EVERYTHING: Final = TrialFilter()

STATE_WORDS: Final = {
    TrialState.PASSED: "passed",
    TrialState.FAILED: "failed",
    TrialState.ERROR: "errors",
    TrialState.IN_DOUBT: "in doubt",
    TrialState.UNCOMPARED: "not compared yet",
}


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
