"""An answer and what is expected, compared by their embeddings: one call, its verdict, and what is no embedding."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.errors import Fault, ProviderFailed
from quintain.graders import Case
from quintain.settings import read_settings
from quintain_runner.engine.run_settings import RunOptions, inspect_evaluation
from quintain_runner.engine.trial import run_trial
from quintain_runner.graders.similar import SimilarGraderRunner
from quintain_runner.results.row import Row, RowStatus
from quintain_runner.spec.asking_graders import SimilarGrader
from support.evaluations import cases, write_evaluation
from support.fake_client import FakeClient
from support.grading_context import grading_context, trial_of

CASE = Case(id="c1", question="Capital of Italy?", expected="Rome")
SIMILAR = SimilarGraderRunner(SimilarGrader(name="near", builtin="similar", embedding_target="vectors", threshold=0.8))


def embeddings(*vectors: object) -> dict[str, Any]:
    return {"data": [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]}


class Embedder(FakeClient):
    """Answers as a bot, and embeds as it is told."""

    def __init__(self, *bodies: dict[str, Any] | Fault, answer: str = "It is Rome") -> None:
        super().__init__(self.say, targets=("bot", "vectors"))
        self.bodies, self.said, self.asked = list(bodies), answer, list[ApiRequest]()

    async def say(self, request: InvokeRequest | ApiRequest) -> str:
        if isinstance(request, ApiRequest):
            self.asked.append(request)
            if isinstance(body := self.bodies.pop(0), Fault):
                raise body
            self.body = body
        return self.said

    def _result(self, request: InvokeRequest | ApiRequest, text: str) -> Result:
        result = super()._result(request, text)
        return result.with_fields(output=[], body=self.body) if isinstance(request, ApiRequest) else result


async def graded(client: Embedder, previous: Row | None = None) -> Row:
    outcome = await run_trial(trial_of(CASE, previous=previous), grading_context(client, SIMILAR))
    return outcome.row


async def test_one_call_embeds_the_answer_and_what_is_expected() -> None:
    # Vectors stand where their index says.
    client = Embedder({"data": [{"index": 1, "embedding": [1.0, 1.0]}, {"index": 0, "embedding": [1.0, 0.0]}]})
    row = await graded(client)
    (asked,) = client.asked
    assert (asked.api, asked.target, asked.grader) == ("embeddings", "vectors", "near")
    assert asked.body.values == {"input": ["It is Rome", "Rome"]}
    verdict = row.graders["near"]
    assert (verdict.score, verdict.passed, verdict.calls) == (pytest.approx(1 / math.sqrt(2)), False, 1)
    assert (row.calls, row.token_usage.input) == (2, 20)


@pytest.mark.parametrize(
    ("vectors", "score", "passed"),
    [(([3.0], [2.0]), 1.0, True), (([1.0, 0.0], [-1.0, 0.0]), 0.0, False), (([4.0, 3.0], [3e300, 4e300]), 0.96, True)],
)
async def test_the_score_is_the_cosine(vectors: tuple[object, object], score: float, passed: bool) -> None:
    verdict = (await graded(Embedder(embeddings(*vectors)))).graders["near"]
    assert (verdict.score, verdict.passed) == (pytest.approx(score), passed)


NO_VECTORS = [
    ([1.0],),
    ([1.0], [1.0, 2.0]),
    ([1.0], "AAAA"),
    ([1.0], ["x"]),
    ([0.0], [1.0]),
    ([], []),
    ([[1.0]], [[1.0]]),
]


@pytest.mark.parametrize("vectors", [None, *NO_VECTORS])
async def test_what_is_no_embedding_is_an_error_and_never_a_score(vectors: tuple[object, ...] | None) -> None:
    row = await graded(Embedder({} if vectors is None else embeddings(*vectors)))
    assert (row.status, row.score, row.graders["near"].calls) == (RowStatus.ERROR, None, 1)


async def test_a_call_that_failed_is_made_again_under_another_id_and_an_answer_is_not() -> None:
    client = Embedder(ProviderFailed("out of order", charged=True), embeddings([1.0], [1.0]))
    failed = await graded(client)
    assert failed.status is RowStatus.IN_DOUBT
    assert (await graded(client, failed)).graders["near"].score == 1.0
    assert len(client.asked) == 2
    assert len(set(client.request_ids)) == len(client.request_ids)


@pytest.mark.parametrize(("variable", "is_refused"), [("QUINTAIN_GATEWAY_URL", True), ("QUINTAIN_BROKER_URL", False)])
async def test_a_run_without_a_broker_cannot_embed(tmp_path: Path, variable: str, is_refused: bool) -> None:
    path = write_evaluation(tmp_path, cases(1), [SIMILAR.spec.model_dump(exclude_unset=True)], targets=["bot"])
    settings = read_settings({variable: "amqp://127.0.0.1:1" if "BROKER" in variable else "http://127.0.0.1:1"})
    found = await inspect_evaluation(RunOptions(path=path, output=tmp_path / "out"), settings)
    assert any("graders[0] (near)" in problem for problem in found.problems) is is_refused


async def test_no_answer_is_not_similar_and_costs_no_call() -> None:
    client = Embedder(answer="")
    verdict = (await graded(client)).graders["near"]
    assert (verdict.score, verdict.passed, verdict.calls, client.asked) == (0.0, False, 0, [])
