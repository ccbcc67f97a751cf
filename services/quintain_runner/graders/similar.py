"""The ``similar`` grader: the cosine similarity of the embeddings of the answer and of what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain.contracts.api_request import ApiRequest, json_text
from quintain.contracts.invoke import NO_TOKENS, Result
from quintain_runner.graders.base import GradingContext, GradingResult, PlannedCalls
from quintain_runner.graders.calls import call_target
from quintain_runner.graders.verdict import GraderError
from quintain_runner.plan.address import NumberedRequest
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import GraderRow
from quintain_runner.spec.asking_graders import SimilarGrader
from quintain_runner.spec.right_answers import answer_text
from quintain_runner.statistics.arrays import np


@dataclass(frozen=True, slots=True)
class SimilarGraderRunner:
    """A ``similar`` grader that is ready to grade answers."""

    spec: SimilarGrader

    @property
    def name(self) -> str:
        """The name of the grader in the results."""
        return self.spec.name

    def planned_calls(self, trial: Trial, context: GradingContext, expected_calls: int) -> Sequence[PlannedCalls]:
        """Implements `GraderRunner.planned_calls`: one, under its own request id."""
        del expected_calls
        body_bytes = sum(len(text.encode()) for text in self._right(trial))
        request_id = self._request_id(trial, context, trial.earlier_calls)
        return [PlannedCalls(request_id, target=self.spec.embedding_target, body_bytes=body_bytes)]

    def _right(self, trial: Trial) -> list[str]:
        """The right answers, of which the nearest counts."""
        return [answer_text(one) for one in self.spec.answers(trial.case)]

    def _request_id(self, trial: Trial, context: GradingContext, spent_calls: int) -> str:
        version = context.fingerprint_of(trial, self.name), context.fingerprints.generation
        return trial.id_of_grading(self.name, self._right(trial), spent_calls, *version)

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Embed the answer and what is expected, and compare them; see `GraderRunner.grade`."""
        right, target = self._right(trial), self.spec.embedding_target
        if not all(right) or not right:
            return GradingResult(GraderRow(error="The row has no expected, which the similar grader needs"), NO_TOKENS)
        if not result.raw_text:
            # There is no embedding of nothing.
            return GradingResult(GraderRow(score=0.0, passed=False, reason="the answer is empty"), NO_TOKENS)
        body = json_text({"input": [result.raw_text, *right]})
        request = ApiRequest("embeddings", body, target=target, grader=self.name)
        call = await call_target(
            NumberedRequest(request, trial.later_number),
            lambda spent: self._request_id(trial, context, trial.earlier_calls + spent),
            context,
            spec=self.spec,
            is_usable=lambda reply: isinstance(similarity_of(reply, 1 + len(right)), float),
        )
        usage = call.token_usage
        row = GraderRow(calls=call.calls, request_id=call.request_id)
        if call.error is not None or call.result is None:
            row = row.with_fields(error=call.error)
            return GradingResult(row, usage, error_code=call.error_code, in_doubt=call.in_doubt)
        similarity = similarity_of(call.result, 1 + len(right))
        if isinstance(similarity, GraderError):
            return GradingResult(row.with_fields(error=similarity.message), usage)
        verdict = row.with_fields(
            score=min(1.0, max(0.0, similarity)),
            passed=similarity >= self.spec.threshold,
            reason=f"cosine similarity {similarity:.4f}",
        )
        return GradingResult(verdict, usage)


def similarity_of(reply: Result, count: int) -> float | GraderError:
    """The similarity of the first of so many embeddings with the nearest of the others, or why there is none."""
    try:
        answer, *others = read_embeddings(reply.body, count=count)
        return max(cosine_similarity(answer, other) for other in others)
    except GraderError as error:
        return error


def read_embeddings(body: dict[str, Any] | None, *, count: int) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """The embeddings in an answer of OpenAI's embeddings API, in the order of what was sent. Raises `GraderError`."""
    data = (body or {}).get("data")
    if not isinstance(data, list) or len(data) != count or not all(isinstance(one, dict) for one in data):
        raise GraderError(f"The embedding target's answer has no list of {count} embeddings")
    by_index = {one.get("index", place): one.get("embedding") for place, one in enumerate(data)}
    try:
        vectors = [np.asarray(by_index[place], dtype=np.float64) for place in range(count)]
    except (KeyError, TypeError, ValueError):
        raise GraderError("The embedding target's answer has what is no embedding: no list of numbers") from None
    if any(vector.ndim != 1 or not len(vector) or not np.isfinite(vector).all() for vector in vectors):
        raise GraderError("The embedding target's answer has what is no embedding: no list of finite numbers")
    if len({len(vector) for vector in vectors}) > 1:
        raise GraderError("The embedding target's answer has embeddings of different lengths")
    return vectors


def cosine_similarity(
    first: np.ndarray[Any, np.dtype[np.float64]], second: np.ndarray[Any, np.dtype[np.float64]]
) -> float:
    """The cosine of the angle between two vectors. Raises `GraderError` where one is all zeros."""
    largest = [float(np.abs(vector).max()) for vector in (first, second)]
    if not all(largest):
        raise GraderError("An embedding of the embedding target is all zeros")
    # Scaled, so that no square is beyond what a number holds.
    first, second = first / largest[0], second / largest[1]
    return float(first @ second) / float(np.linalg.norm(first) * np.linalg.norm(second))
