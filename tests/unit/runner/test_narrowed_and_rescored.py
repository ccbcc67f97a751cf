"""Commands that execute a part of a run, or grade its kept answers again: what they call, and what they leave."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError, ProviderFailed
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.plan.dataset import open_dataset, read_cases
from quintain_runner.plan.trial_selection import SelectionOptions, select_trials
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


FIRST_CASE = {"selection": SelectionOptions(limit=1)}


async def test_a_narrowed_command_asks_its_part_and_the_totals_stay_those_of_the_run(judged: EvaluationFolder) -> None:
    summary = await judged.run(selection=SelectionOptions(ids=("case-2", "case-3"), limit=1))
    assert (judged.called(*TARGETS), [row.case_id for row in judged.rows()]) == ((1, 1), ["case-2"])
    assert (summary.total.trials, summary.total.graded, summary.total.waiting) == (4, 1, 3)
    summary = await judged.run()
    assert (judged.called(*TARGETS), summary.total.graded) == ((3, 3), 4)
    summary = await judged.run(**FIRST_CASE)
    assert (judged.called(*TARGETS), summary.total.trials, summary.total.graded) == ((0, 0), 4, 4)
    assert [judged.record["totals"][name] for name in ("trials", "graded")] == [4, 4]


def select(tmp_path: Path, **options: Any) -> tuple[list[str], dict[str, int]]:
    """The ids of the selected cases of eight, four of them in law, and how many each option leaves out."""
    rows = [{**case, "topic": ("law", "tax")[index % 2], "level": index} for index, case in enumerate(cases(8))]
    evaluation = load_evaluation(write_evaluation(tmp_path, rows, [EXACT]))
    dataset = open_dataset(evaluation, tmp_path, {})
    selected = select_trials(SelectionOptions(**options), dataset, (), tmp_path / "out")
    with closing(read_cases(dataset.source)) as read:
        marked = [case.id for case, is_selected in selected.cases.mark_cases(read) if is_selected]
    assert selected.case_count in (None, len(marked))
    return marked, dict(selected.left_out)


def test_each_option_that_selects_cases_counts_those_that_it_leaves_out(tmp_path: Path) -> None:
    law = ["case-0", "case-2", "case-4", "case-6"]
    assert select(tmp_path) == (law[:1] + [f"case-{number}" for number in range(1, 8)], {})
    assert select(tmp_path, where=("topic=law",)) == (law, {"--where": 4})
    assert select(tmp_path, where=("level=2", "level=3"), ids=("case-3", "case-4"))[0] == ["case-3"]
    assert select(tmp_path, where=("topic=law",), limit=1) == (law[:1], {"--where": 4, "--limit": 3})
    sample, left_out = select(tmp_path, where=("topic=law",), sample=2, seed=7)
    assert (len(set(sample) & set(law)), left_out) == (2, {"--where": 4, "--sample": 2})
    assert any(select(tmp_path, where=("topic=law",), sample=2, seed=seed)[0] != sample for seed in range(20))
    assert select(tmp_path, where=("topic=law",), sample=2, seed=7, limit=1)[0] == sample[:1]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"where": ("topik=law",)}, "--where topik=law: .*'topik'; did you mean 'topic'"),
        ({"where": ("topic=lav",)}, "--where topic=lav: .*; did you mean 'law'"),
        ({"where": ("level=9",)}, "--where level=9: "),
        ({"where": ("topic",)}, "--where topic: .*FIELD=VALUE"),
        ({"where": ("topic=law",), "ids": ("case-1",)}, "no case"),
        ({"ids": ("case-1", "case-22")}, "--case 'case-22'; did you mean 'case-2'"),
        ({"failing": True}, "--failing: .*--of"),
        ({"of": Path("other")}, "--of.*--failing"),
        ({"seed": 7}, "--seed: .*--sample"),
    ],
)
def test_options_that_select_no_case_are_refused_with_the_nearest(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        select(tmp_path, **options)


async def test_failing_selects_the_cases_of_failed_rows_and_errors_of_a_run(judged: EvaluationFolder) -> None:
    async def answer(request: InvokeRequest) -> str:
        if request.question == "q1":
            raise ProviderFailed("broken")
        return "wrong" if request.question == "q2" else await judged_echo(request)

    judged.client.answer = answer
    await judged.run()
    judged.client.fingerprints["bot"] = "another"
    summary = await judged.run(selection=SelectionOptions(failing=True))
    assert [request.question for request in judged.asked if request.target == "bot"] == ["q1", "q2"]
    assert (judged.plan.not_selected, summary.total.waiting) == (2, 2)
    assert judged.record["history"][-1]["selection"] == {"failing": True, "leftOut": {"--failing": 2}}
    first, judged.path = judged.output, judged.path / "again"
    judged.path.mkdir()
    (judged.path / "prompt.md").write_text("Reasoned: is it right?")
    write_evaluation(judged.path, cases(4), [EXACT, JUDGED])
    await judged.run(selection=SelectionOptions(failing=True, of=first))
    assert [row.case_id for row in judged.rows()] == ["case-1", "case-2"]
    with pytest.raises(ConfigError, match="no row"):
        judged.settings(selection=SelectionOptions(failing=True), targets=("other",))


async def test_rows_that_changed_and_are_not_selected_are_in_no_table(judged: EvaluationFolder) -> None:
    await judged.run()
    judged.client.fingerprints["bot"] = "another"
    summary = await judged.run(**FIRST_CASE)
    assert (judged.called(*TARGETS), summary.total.graded, summary.total.waiting) == ((1, 0), 1, 3)
    assert [row.target_fingerprint for row in counted(judged)] == ["another"]
    assert judged.plan.to_wire()["notSelected"] == 3
    judged.client.fingerprints["bot"] = "fingerprint-of-bot"
    summary = await judged.run()
    assert (judged.called(*TARGETS), summary.total.graded) == ((0, 0), 4)


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


async def test_a_selected_grader_runs_alone_and_verdicts_of_others_stay_in_their_rows(judged: EvaluationFolder) -> None:
    own = [{**case, "graders": [{"name": "own", "builtin": "contains", "value": "q"}]} for case in cases(4)]
    weighted = [EXACT, {**JUDGED, "weight": 3}]
    write_evaluation(judged.path, own, weighted)
    same = {"selection": SelectionOptions(graders=("same",))}
    summary = await judged.run(**same)
    assert (judged.called(*TARGETS), summary.has_open_trials) == ((4, 0), True)
    assert [row.graders.keys() for row in judged.rows()] == [{"same"}] * 4
    await judged.run()
    assert judged.called(*TARGETS) == (0, 4)
    before = {row.case_id: row for row in counted(judged)}
    (judged.path / "prompt.md").write_text("Changed: is it right?")
    write_evaluation(judged.path, own, [{**EXACT, "ignore_case": True}, {**JUDGED, "weight": 3}])
    await judged.run(**same)
    assert (judged.asked, judged.plan.graded_again) == ([], 4)
    for row in counted(judged):
        was = before[row.case_id].graders
        assert (row.graders["judged"], row.graders["own"]) == (was["judged"], was["own"])
        assert row.graders["same"].fingerprint != was["same"].fingerprint
    await judged.run(**same)
    assert (judged.asked, judged.plan.kept) == ([], 4)
    await judged.run(selection=SelectionOptions(graders=("own",)))
    assert (judged.asked, judged.plan.kept) == ([], 4)
    assert judged.record["fingerprints"]["graders"]["bot"].keys() == {"same", "judged"}
    await judged.run()
    assert judged.called(*TARGETS) == (0, 4)
    judged.client.fingerprints["bot"] = "another"
    await judged.run(**same)
    assert [row.graders.keys() for row in counted(judged)] == [{"same"}] * 4


async def test_a_selected_prompt_is_asked_alone(judged: EvaluationFolder) -> None:
    prompts = [{"name": "plain", "user": "{{ question }}"}, {"name": "brief", "user": "Briefly: {{ question }}"}]
    write_evaluation(judged.path, cases(4), [EXACT], prompts=prompts)
    summary = await judged.run(selection=SelectionOptions(prompts=("brief",)))
    assert [request.question for request in judged.asked] == [f"Briefly: q{number}" for number in range(4)]
    assert (summary.total.trials, summary.per_target["bot · plain"].waiting) == (8, 4)
    assert judged.record["history"][-1]["selection"] == {"prompts": ["brief"]}
    summary = await judged.run()
    assert (judged.called("bot"), summary.total.graded) == ((4,), 8)


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
