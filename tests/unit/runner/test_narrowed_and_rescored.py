"""Commands that execute a part of a run, or grade its kept answers again: what they call, and what they leave."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.plan.trials import TrialSelection
from quintain_runner.report.comparison import compare_runs
from quintain_runner.report.run_file import open_run
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import RunSummary
from quintain_runner.results.row import Row
from quintain_runner.spec.evaluation import Evaluation, load_evaluation
from support.evaluations import EXACT, EvaluationFolder, Json, cases, write_evaluation
from support.fake_client import FakeClient

JUDGED: Json = {"name": "judged", "builtin": "llm-judge", "prompt": "prompt.md", "judge_target": "judge"}


async def answer(request: InvokeRequest) -> str:
    """The judge passes everything; the target under test repeats the question."""
    return '{"pass": true, "reason": "secret reason"}' if request.target == "judge" else request.question or ""


@dataclass
class Judged:
    """An evaluation of four cases with a judge, and how often a command called whom."""

    folder: EvaluationFolder
    rows: list[Json]

    def write(self, graders: list[Json] | None = None) -> None:
        write_evaluation(self.folder.path, self.rows, graders or [EXACT, JUDGED])

    async def run(
        self,
        policy: RerunPolicy | None = None,
        **options: Any,
    ) -> RunSummary:
        self.folder.client.requests.clear()
        return await self.folder.run(rerun_policy=policy or RerunPolicy(), **options)

    @property
    def plan(self) -> RerunPlan | None:
        return self.folder.plan

    async def rescore(self) -> RunSummary:
        return await self.run(policy=RerunPolicy(answers_only=True), regrades=True)

    @property
    def called(self) -> tuple[int, int]:
        """How often the last command called the target under test, and the judge."""
        names = [request.target for request in self.folder.client.requests]
        return names.count("bot"), names.count("judge")

    @property
    def record(self) -> Json:
        record: Json = json.loads((self.folder.output / "run.json").read_text())
        return record

    def counted(self) -> list[Row]:
        return list(read_report(self.folder.output).rows())


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Judged]:
    (tmp_path / "prompt.md").write_text("Is it right?")
    one = Judged(EvaluationFolder(tmp_path, FakeClient(answer, targets=("bot", "judge"))), cases(4))
    one.write()
    yield one


FIRST_CASE = {"limit": 1}


async def test_a_narrowed_command_asks_its_part_and_the_totals_stay_those_of_the_run(judged: Judged) -> None:
    summary = await judged.run(case_ids=("case-2", "case-3"), limit=1)
    assert (judged.called, [row.case_id for row in judged.folder.rows()]) == ((1, 1), ["case-2"])
    assert (summary.total.trials, summary.total.graded, summary.total.waiting) == (4, 1, 3)
    summary = await judged.run()
    assert (judged.called, summary.total.graded) == ((3, 3), 4)
    summary = await judged.run(**FIRST_CASE)
    assert (judged.called, summary.total.trials, summary.total.graded) == ((0, 0), 4, 4)
    totals = judged.record["totals"]
    assert isinstance(totals, dict)
    assert (totals["trials"], totals["graded"]) == (4, 4)


async def test_rows_that_changed_and_are_not_selected_are_in_no_table_until_the_change_is_taken_back(
    judged: Judged,
) -> None:
    await judged.run()
    judged.folder.client.fingerprints["bot"] = "another"
    summary = await judged.run(**FIRST_CASE)
    assert (judged.called, summary.total.graded, summary.total.waiting) == ((1, 1), 1, 3)
    assert [row.target_fingerprint for row in judged.counted()] == ["another"]
    assert judged.plan is not None
    assert judged.plan.to_wire()["notSelected"] == 3
    judged.folder.client.fingerprints["bot"] = "fingerprint-of-bot"
    summary = await judged.run()
    assert (judged.called, summary.total.graded) == ((1, 1), 4)


async def test_a_narrowed_command_keeps_the_rows_of_other_targets(judged: Judged) -> None:
    judged.folder.client.targets = ("bot", "judge", "other")
    judged.folder.targets = ("bot", "other")
    write_evaluation(judged.folder.path, judged.rows, [EXACT, JUDGED], targets=["bot", "other"])
    summary = await judged.run(targets=("bot",))
    assert (judged.called[0], len(judged.folder.client.requests)) == (4, 8)
    assert (summary.total.trials, summary.per_target["other"].waiting) == (8, 4)
    summary = await judged.run(targets=("other",))
    assert (judged.called[0], summary.total.graded) == (0, 8)
    assert [entry.get("selection") for entry in judged.record["history"]] == [  # type: ignore[attr-defined]
        {"targets": ["bot"]},
        {"targets": ["other"]},
    ]


async def test_a_target_that_is_not_selected_need_not_be_served(judged: Judged) -> None:
    judged.folder.client.targets = ("bot", "judge", "other")
    judged.folder.targets = ("bot", "other")
    await judged.run()
    judged.folder.client.targets = ("bot", "judge")
    summary = await judged.run(targets=("bot",))
    assert (summary.total.graded, judged.folder.client.requests) == (8, [])


async def test_the_targets_of_earlier_commands_are_those_of_the_run(judged: Judged) -> None:
    def planned(evaluation: Evaluation, *targets: str) -> list[str]:
        run = open_run(judged.folder.output, evaluation, targets, "d" * 64, is_narrowed=True)
        return run.configuration.targets

    evaluation = load_evaluation(judged.folder.path / "eval.yaml")
    assert planned(evaluation, "other") == ["other"]
    await judged.run()
    assert planned(evaluation, "other") == ["bot", "other"]
    named = replace(evaluation, spec=evaluation.spec.model_copy(update={"targets": ["x", "bot"]}))
    assert planned(named, "bot") == ["x", "bot"]


def test_ids_that_no_case_has_are_told() -> None:
    selection = TrialSelection(case_ids=frozenset({"a", "b", "c"}))
    assert selection.unknown_case_ids([Case(id="b", question="q")]) == ["a", "c"]


async def test_a_rescore_gives_every_verdict_again_and_asks_no_target(judged: Judged) -> None:
    await judged.run()
    before = set(judged.folder.client.request_ids)
    summary = await judged.rescore()
    assert (judged.called, summary.total.graded) == ((0, 4), 4)
    assert not before & set(judged.folder.client.request_ids[-4:])
    assert {verdict.generation for row in judged.folder.rows() for verdict in row.graders.values()} == {1}
    assert (judged.record["generation"], judged.record["history"][-1]["generation"]) == (1, 1)  # type: ignore[index]
    await judged.run()
    assert judged.folder.client.requests == []
    await judged.rescore()
    assert (judged.called, judged.record["generation"]) == ((0, 4), 2)


async def test_a_rescore_that_breaks_off_leaves_no_old_verdict_in_a_table(judged: Judged) -> None:
    await judged.run()
    judged.folder.concurrency = 1

    async def breaks_off(request: InvokeRequest) -> str:
        if len(judged.folder.client.requests) > 2:
            raise RuntimeError("killed")
        return await answer(request)

    judged.folder.client.answer = breaks_off
    with pytest.raises(RuntimeError, match="killed"):
        await judged.rescore()
    assert judged.record["generation"] == 1
    assert [row.graders["judged"].generation for row in judged.counted()] == [1, 1]
    judged.folder.client.answer = answer
    summary = await judged.run()
    assert (judged.called, summary.total.graded) == ((0, 2), 4)


async def test_a_rescore_leaves_what_it_has_no_answer_for(judged: Judged) -> None:
    await judged.run(limit=3)
    judged.rows[0]["question"] = "another question"
    judged.write()
    summary = await judged.rescore()
    assert (judged.called, summary.total.graded, summary.total.waiting) == ((0, 2), 2, 2)


async def test_answers_of_a_target_that_changed_since_are_graded_and_stay_marked(judged: Judged) -> None:
    await judged.run()
    judged.folder.client.fingerprints["bot"] = "another"
    summary = await judged.rescore()
    assert (judged.called, summary.total.graded) == ((0, 4), 4)
    assert {(row.target_fingerprint, *(row.stale or ())) for row in judged.counted()} == {
        ("fingerprint-of-bot", "target bot changed")
    }
    assert read_report(judged.folder.output).stale_rows == 4
    await judged.run()
    assert judged.called == (4, 4)


async def test_a_comparison_names_graders_that_changed_and_counts_stale_rows(judged: Judged) -> None:
    await judged.run()
    before = shutil.copytree(judged.folder.output, judged.folder.path / "before")
    (judged.folder.path / "prompt.md").write_text("Is it polite?")
    judged.folder.client.fingerprints["bot"] = "another"
    await judged.rescore()
    comparison = compare_runs(read_report(before), read_report(judged.folder.output))
    assert (comparison.changed_graders, comparison.stale_before, comparison.stale_after) == (["judged"], 0, 4)


async def test_rows_without_content_hold_no_text_and_are_kept(judged: Judged) -> None:
    await judged.run(keeps_content=False)
    text = (judged.folder.output / "results.jsonl").read_text()
    assert "secret reason" not in text
    assert '"q1"' not in text
    summary = await judged.run()
    assert (summary.total.graded, judged.folder.client.requests) == (4, [])


async def test_rows_without_content_are_refused_for_grading_again_and_nothing_changes(judged: Judged) -> None:
    await judged.run(keeps_content=False)
    before = (judged.folder.output / "results.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"4 rows .* case-0 · bot, .* 4 to 8 calls"):
        await judged.rescore()
    judged.write([{**EXACT, "ignore_case": True}])
    with pytest.raises(ConfigError, match=r"costs 4 calls"):
        await judged.run()
    assert (judged.folder.output / "results.jsonl").read_bytes() == before
    assert (judged.folder.client.requests, judged.record["generation"]) == ([], 0)
    summary = await judged.run(policy=RerunPolicy(keep_stale=True))
    assert (summary.total.graded, read_report(judged.folder.output).stale_rows) == (4, 4)
    judged.folder.client.fingerprints["bot"] = "another"
    await judged.run()
    assert judged.called == (4, 0)
