"""Graders that a case has of its own, and lists of graders: what they call, and what a change of them grades again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain_runner.engine.estimate import EstimateInput, TokensEstimate, estimate_run
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.plan.trials import estimate_dataset
from quintain_runner.results.row import RowStatus
from support.evaluations import EXACT, EvaluationFolder, Json, cases, rows_of, write_evaluation
from support.fake_client import FakeClient

TARGETS = ("bot", "judge")


def judged(criterion: str, **options: object) -> Json:
    """A judge of one criterion."""
    return {"builtin": "llm-judge", "judge_target": "judge", "rubric": [{"id": "is", "text": criterion}], **options}


class World:
    """Three cases with graders of their own, and a judge who finds that an answer is everything but rude."""

    def __init__(self, folder: Path) -> None:
        self.replies: list[str] = []
        self.client = FakeClient(self.answer, targets=TARGETS)
        self.folder = EvaluationFolder(folder, self.client)
        self.rows, self.shared = cases(3), [EXACT]

    async def answer(self, request: InvokeRequest) -> str:
        if request.target != "judge":
            return request.question or ""
        score = 0 if "is rude" in (request.system_prompt or "") else 1
        return self.replies.pop(0) if self.replies else json.dumps({"criteria": {"is": {"score": score}}})

    def settings(self, rows: list[Json], graders: list[Json]) -> RunSettings:
        write_evaluation(self.folder.path, rows, graders)
        return self.folder.settings()

    async def run(self) -> tuple[dict[str, Json], int, int]:
        """The rows by case, and how often the target and the judge were asked."""
        await self.folder.run(self.settings(self.rows, self.shared))
        rows = {str(row["caseId"]): row for row in rows_of(self.folder.output)}
        return rows, *self.folder.called(*TARGETS)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def graders_of(row: Json) -> Json:
    graders = row["graders"]
    return {name: one["pass"] for name, one in graders.items()}


async def test_each_case_is_graded_by_the_evaluations_graders_and_by_its_own(world: World) -> None:
    world.rows[0]["graders"] = [judged("It is kind."), judged("It is rude.", **{"not": True})]
    world.rows[1]["graders"] = [{"any": [{"builtin": "exact", "value": "no"}, judged("It is kind.")]}]
    rows, asked, judgements = await world.run()
    assert graders_of(rows["case-0"]) == {"same": True, "llm-judge": True, "not-llm-judge": True}
    assert graders_of(rows["case-1"]) == {"same": True, "any": True}
    assert graders_of(rows["case-2"]) == {"same": True}
    assert (asked, judgements) == (3, 3)
    assert [row["score"] for row in rows.values()] == [1.0, 1.0, 1.0]


async def test_the_calls_and_tokens_of_a_run_count_those_of_the_cases_own_graders(world: World) -> None:
    kind, short = judged("It is kind."), judged("It is short, and says all that matters.")
    world.rows[0]["graders"] = [kind, {"any": [short, judged("It is rude.")]}]
    world.rows[2]["graders"] = [kind]
    for cases_, most in ((3, 3 + 4), (1, 1 + 3)):
        settings = world.settings(world.rows, [EXACT])
        assert estimate_dataset(settings.evaluation, settings.dataset, cases=cases_, targets=1).most == most

    def tokens(rows: list[Json], graders: list[Json]) -> TokensEstimate:
        settings = world.settings(rows, graders)
        plan = EstimateInput(evaluation=settings.evaluation, dataset=settings.dataset, targets=["bot"])
        return estimate_run(plan).tokens["judge"]

    bare = {**world.rows[0], "graders": []}
    own = tokens([{**bare, "graders": [kind, {"any": [short]}]}], [EXACT])
    shared = tokens([bare], [{**short, "name": "x"}])
    assert own.output == 2 * shared.output
    assert own.input == pytest.approx(2 * shared.input, rel=0.05)


async def test_a_changed_grader_of_one_case_grades_that_case_again_and_asks_only_that_judge(world: World) -> None:
    for row in world.rows:
        row["graders"] = [judged("It is kind."), {"builtin": "contains", "value": "q"}]
    await world.run()
    world.rows[1]["graders"] = [judged("It is rude."), {"builtin": "contains", "value": "q"}]
    rows, asked, judgements = await world.run()
    assert (asked, judgements) == (0, 1)
    assert graders_of(rows["case-1"])["llm-judge"] is False
    assert graders_of(rows["case-0"])["llm-judge"] is True
    world.client.fingerprints["judge"] = "another"
    assert (await world.run())[1:] == (0, 3)


async def test_a_judges_instructions_may_stand_in_the_file_and_in_a_case_where_they_are_no_template(
    world: World,
) -> None:
    world.rows = [{**world.rows[0], "tone": "kind", "expected": ["q0", "Q0"]}]
    told = {"builtin": "llm-judge", "judge_target": "judge"}
    world.rows[0]["graders"] = [{**told, "name": "own", "instructions": "Is it {{ tone }}?"}]
    world.shared = [{**told, "name": "shared", "instructions": "Is it {{ tone }}?"}]
    world.replies = ['{"pass": true}'] * 2
    rows, *_ = await world.run()
    assert graders_of(rows["case-0"]) == {"shared": True, "own": True}
    judgements = [request for request in world.folder.asked if request.target == "judge"]
    assert [str(request.system_prompt).partition("\n")[0] for request in judgements] == [
        "Is it kind?",
        "Is it {{ tone }}?",
    ]
    assert all('Any of these is right: ["q0", "Q0"]' in str(request.question) for request in judgements)


async def test_a_value_of_the_evaluation_file_is_a_template_and_one_of_a_case_is_none(world: World) -> None:
    world.shared = [{"builtin": "contains", "value": ["no", "{{ question }}"]}]
    world.rows[0]["graders"] = [{"name": "own", "builtin": "contains", "value": "{{ question }}"}]
    rows, *_ = await world.run()
    assert graders_of(rows["case-0"]) == {"contains": True, "own": False}


async def test_a_reply_that_is_no_verdict_is_an_error_also_under_not_and_in_a_list(world: World) -> None:
    world.rows[0]["graders"] = [judged("It is rude.", **{"not": True})]
    world.rows[1]["graders"] = [{"any": [{"builtin": "contains", "value": "q"}, judged("It is kind.")], "not": True}]
    world.replies = ["yes, it is"] * 2
    rows, _, judgements = await world.run()
    assert [rows[f"case-{number}"]["status"] for number in range(3)] == [RowStatus.ERROR, RowStatus.ERROR, "graded"]
    assert judgements == 2
    again, asked, judgements = await world.run()
    assert (asked, judgements) == (0, 2)
    assert (graders_of(again["case-0"])["not-llm-judge"], graders_of(again["case-1"])["not-any"]) == (True, False)


async def test_what_a_judge_of_a_list_said_is_not_asked_again_where_another_of_it_failed(world: World) -> None:
    world.rows = world.rows[:1]
    world.rows[0]["graders"] = [{"all": [judged("It is kind."), judged("It is short.")]}]
    world.replies = [json.dumps({"criteria": {"is": {"score": 1}}}), "no verdict"]
    assert (await world.run())[2] == 2
    rows, _, judgements = await world.run()
    assert judgements == 1
    graders = rows["case-0"]["graders"]
    assert (graders["all"]["pass"], graders["all"]["calls"]) == (True, 3)
