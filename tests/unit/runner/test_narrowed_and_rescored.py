"""Commands that execute a part of a run, or grade its kept answers again: what they call, and what they leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.plan.trials import TrialSelection
from quintain_runner.report.run_file import open_run
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import RunSummary
from quintain_runner.results.row import Row
from quintain_runner.spec.evaluation import Evaluation, load_evaluation
from support.evaluations import EXACT, JUDGED, EvaluationFolder, cases, judged_echo, write_evaluation
from support.fake_client import FakeClient

TARGETS = ("bot", "judge")


@pytest.fixture
def judged(tmp_path: Path) -> EvaluationFolder:
    """An evaluation of four cases with a judge."""
    (tmp_path / "prompt.md").write_text("Reasoned: is it right?")
    write_evaluation(tmp_path, cases(4), [EXACT, JUDGED])
    return EvaluationFolder(tmp_path, FakeClient(judged_echo, targets=TARGETS))


async def rescore(judged: EvaluationFolder) -> RunSummary:
    return await judged.run(rerun_policy=RerunPolicy(answers_only=True), regrades=True)


def counted(judged: EvaluationFolder) -> list[Row]:
    return list(read_report(judged.output).rows())


FIRST_CASE = {"limit": 1}


async def test_a_narrowed_command_asks_its_part_and_the_totals_stay_those_of_the_run(judged: EvaluationFolder) -> None:
    summary = await judged.run(case_ids=("case-2", "case-3"), limit=1)
    assert (judged.called(*TARGETS), [row.case_id for row in judged.rows()]) == ((1, 1), ["case-2"])
    assert (summary.total.trials, summary.total.graded, summary.total.waiting) == (4, 1, 3)
    summary = await judged.run()
    assert (judged.called(*TARGETS), summary.total.graded) == ((3, 3), 4)
    summary = await judged.run(**FIRST_CASE)
    assert (judged.called(*TARGETS), summary.total.trials, summary.total.graded) == ((0, 0), 4, 4)
    assert [judged.record["totals"][name] for name in ("trials", "graded")] == [4, 4]
    unknown = TrialSelection(case_ids=frozenset({"a", "b", "c"})).unknown_case_ids([Case(id="b", question="q")])
    assert unknown == ["a", "c"]


async def test_rows_that_changed_and_are_not_selected_are_in_no_table(judged: EvaluationFolder) -> None:
    await judged.run()
    judged.client.fingerprints["bot"] = "another"
    summary = await judged.run(**FIRST_CASE)
    assert (judged.called(*TARGETS), summary.total.graded, summary.total.waiting) == ((1, 1), 1, 3)
    assert [row.target_fingerprint for row in counted(judged)] == ["another"]
    assert judged.plan.to_wire()["notSelected"] == 3
    judged.client.fingerprints["bot"] = "fingerprint-of-bot"
    summary = await judged.run()
    assert (judged.called(*TARGETS), summary.total.graded) == ((1, 1), 4)


async def test_a_narrowed_command_keeps_the_rows_of_other_targets(judged: EvaluationFolder) -> None:
    judged.client.targets = ("bot", "judge", "other")
    judged.targets = ("bot", "other")
    write_evaluation(judged.path, cases(4), [EXACT, JUDGED], targets=["bot", "other"])
    summary = await judged.run(targets=("bot",))
    assert (judged.called("bot"), len(judged.asked)) == ((4,), 8)
    assert (summary.total.trials, summary.per_target["other"].waiting) == (8, 4)
    summary = await judged.run(targets=("other",))
    assert (judged.called("bot"), summary.total.graded) == ((0,), 8)
    assert [entry["selection"] for entry in judged.record["history"]] == [{"targets": ["bot"]}, {"targets": ["other"]}]
    # A target that is not selected need not be served.
    judged.client.targets = ("bot", "judge")
    summary = await judged.run(targets=("bot",))
    assert (summary.total.graded, judged.asked) == (8, [])


async def test_the_targets_of_earlier_commands_are_those_of_the_run(judged: EvaluationFolder) -> None:
    def planned(evaluation: Evaluation, *targets: str) -> list[str]:
        run = open_run(judged.output, evaluation, targets, "d" * 64, is_narrowed=True)
        return run.configuration.targets

    evaluation = load_evaluation(judged.path / "eval.yaml")
    assert planned(evaluation, "other") == ["other"]
    await judged.run()
    assert planned(evaluation, "other") == ["bot", "other"]
    named = replace(evaluation, spec=evaluation.spec.model_copy(update={"targets": ["x", "bot"]}))
    assert planned(named, "bot") == ["x", "bot"]


async def test_a_rescore_gives_every_verdict_again_and_asks_no_target(judged: EvaluationFolder) -> None:
    await judged.run()
    before = set(judged.client.request_ids)
    summary = await rescore(judged)
    assert (judged.called(*TARGETS), summary.total.graded) == ((0, 4), 4)
    assert not before & set(judged.client.request_ids[-4:])
    assert {verdict.generation for row in judged.rows() for verdict in row.graders.values()} == {1}
    assert (judged.record["generation"], judged.record["history"][-1]["generation"]) == (1, 1)
    await judged.run()
    assert judged.asked == []
    await rescore(judged)
    assert (judged.called(*TARGETS), judged.record["generation"]) == ((0, 4), 2)


async def test_a_rescore_that_breaks_off_leaves_no_old_verdict_in_a_table(judged: EvaluationFolder) -> None:
    await judged.run()
    judged.concurrency = 1

    async def breaks_off(request: InvokeRequest) -> str:
        if len(judged.asked) > 2:
            raise RuntimeError("killed")
        return await judged_echo(request)

    judged.client.answer = breaks_off
    with pytest.raises(RuntimeError, match="killed"):
        await rescore(judged)
    assert judged.record["generation"] == 1
    assert [row.graders["judged"].generation for row in counted(judged)] == [1, 1]
    judged.client.answer = judged_echo
    summary = await judged.run()
    assert (judged.called(*TARGETS), summary.total.graded) == ((0, 2), 4)


async def test_rows_without_content_hold_no_text_and_are_kept(judged: EvaluationFolder) -> None:
    await judged.run(keeps_content=False)
    text = (judged.output / "results.jsonl").read_text()
    assert "Reasoned" not in text
    assert '"q1"' not in text
    summary = await judged.run()
    assert (summary.total.graded, judged.asked) == (4, [])


async def test_rows_without_content_are_refused_for_grading_again_and_nothing_changes(judged: EvaluationFolder) -> None:
    await judged.run(keeps_content=False)
    before = (judged.output / "results.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"4 rows .* case-0 · bot, .* 4 to 8 calls"):
        await rescore(judged)
    write_evaluation(judged.path, cases(4), [{**EXACT, "ignore_case": True}])
    with pytest.raises(ConfigError, match=r"costs 4 calls"):
        await judged.run()
    assert (judged.output / "results.jsonl").read_bytes() == before
    assert (judged.asked, judged.record["generation"]) == ([], 0)
    judged.client.fingerprints["bot"] = "another"
    await judged.run()
    assert judged.called(*TARGETS) == (4, 0)
