"""The score of an answer, by the weights of its graders, and the tags by which rows are counted. No I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from quintain.graders import Case
from quintain_runner.results.counts import ANSWERED
from quintain_runner.results.row import GraderRow, Row, RowStatus
from quintain_runner.spec.evaluation import EvaluationSpec
from quintain_runner.spec.prompts import case_field

#: The tag of a case that has no value of the field.
NO_VALUE = "(none)"


@dataclass(frozen=True, slots=True)
class Scoring:
    """The graders' weights by name, 1 if absent; and the fields of the case by whose values rows are counted."""

    weights: Mapping[str, float] = field(default_factory=dict)
    by: Sequence[str] = ()

    @classmethod
    def of(cls, spec: EvaluationSpec) -> Scoring:
        """What an evaluation file says."""
        return cls({grader.name: grader.weight for grader in spec.graders}, spec.by)

    def applied_to(self, row: Row, case: Case) -> Row:
        """The row with the weighted mean of its graders' scores, and with the tags of its case; the same row if it has
        them already."""
        tags = {name: tags_of(case_field(case, name)) for name in self.by} or None
        has_score = row.score is not None or row.status is not RowStatus.GRADED
        weights = {**self.weights, **{grader.name: grader.weight for grader in case.graders}}
        # A verdict of a case's own grader that the command leaves out keeps its weight.
        weights = {name: weights.get(name, grader.weight) for name, grader in row.graders.items()}
        has_weights = all(grader.weight == weights[name] for name, grader in row.graders.items())
        if has_score and has_weights and tags == row.tags:
            return row
        graders = row.graders
        if not has_weights:
            graders = {name: one.with_fields(weight=weights[name]) for name, one in graders.items()}
        if row.status in ANSWERED:
            score = _weighted_mean(graders.values())
            row = row.with_fields(score=score, status=RowStatus.UNCOMPARED if score is None else RowStatus.GRADED)
        return row.with_fields(graders=graders, tags=tags)


def _weighted_mean(graders: Collection[GraderRow]) -> float | None:
    """The mean of the graders' scores by their weights; None if no grader with a weight has a score."""
    scores = [(grader.weight, grader.score) for grader in graders if grader.weight and grader.score is not None]
    return sum(weight * score for weight, score in scores) / sum(weight for weight, _ in scores) if scores else None


def tags_of(value: JsonValue) -> list[str]:
    """The tags that the value of a field gives: text as it is, other values as JSON, of a list one for each item."""
    values = value if isinstance(value, list) else [value]
    texts = [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in values if item != ""]
    return list(dict.fromkeys(NO_VALUE if text == "null" else text for text in texts)) or [NO_VALUE]
