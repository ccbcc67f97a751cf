"""Several judges: how they vote, what becomes of a missing vote, and which votes the next run asks for."""

from __future__ import annotations

import asyncio
import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quintain.contracts.invoke import NO_TOKENS, InvokeRequest
from quintain.errors import Fault, ProviderFailed, Rejected
from quintain_runner.graders.base import GradingResult
from quintain_runner.graders.judge import jury_result
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.report.inspect_export import write_inspect_logs
from quintain_runner.report.report_files import write_csv
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import ExitCode
from quintain_runner.report.tables import run_tables
from quintain_runner.results.row import Check, GraderRow, RowStatus
from quintain_runner.spec.asking_graders import JudgeGrader
from quintain_view.reading import case_pages
from support.evaluations import EvaluationFolder, Json, cases, write_evaluation
from support.fake_client import FakeClient

JUDGES = ("ada", "bob", "cyd")
JURY: dict[str, Any] = {"name": "jury", "builtin": "llm-judge", "prompt": "judge.md", "judge_targets": [*JUDGES]}
PASSES, FAILS = '{"pass": true, "reason": "yes"}', '{"pass": false, "reason": "no"}'


def spec(**options: Any) -> JudgeGrader:
    return JudgeGrader.model_validate({**JURY, **options})


def votes(*scores: float | str | None) -> dict[str, GradingResult]:
    """A vote with each score, each passing from 0.5; a missing one is None, or the code of its error."""
    given = {}
    for number, score in enumerate(scores):
        row = GraderRow(score=score, passed=score >= 0.5) if isinstance(score, float) else GraderRow(error="no")
        code = score if isinstance(score, str) else "grader_failed"
        given[f"judge-{number}"] = GradingResult(row.with_fields(calls=1), NO_TOKENS, error_code=code)
    return given


def said(rule: str, *scores: float | str | None, min_votes: int = 2) -> tuple[object, ...]:
    """What a jury says of these votes: its score, whether it passes and whether it is tied; its error's code."""
    judges = [f"judge-{number}" for number in range(len(scores))]
    result = jury_result(spec(judge_targets=judges, vote=rule, min_votes=min_votes), votes(*scores))
    row = result.row
    assert row.calls == len(scores)
    return (result.error_code,) if row.error is not None else (row.score, row.passed, row.tied)


@pytest.mark.parametrize(
    ("rule", "scores", "verdict"),
    [
        ("majority", (1.0, 1.0, 0.0), (0.666666666667, True, False)),
        ("majority", (0.9, 0.0, 0.0), (0.3, False, False)),
        ("majority", (1.0, 0.0), (0.5, False, True)),
        ("mean", (0.4, 0.4, 0.9), (0.566666666667, True, False)),
        ("mean", (0.6, 0.6, 0.0), (0.4, False, False)),
        ("mean", (1.0, 0.0), (0.5, True, False)),
        ("all", (1.0, 0.5, 0.6), (0.7, True, False)),
        ("all", (1.0, 1.0, 0.4), (0.8, False, False)),
        ("all", (1.0, 0.0), (0.5, False, False)),
        # Missing votes that cannot decide.
        ("majority", (1.0, 1.0, None), (1.0, True, False)),
        ("mean", (0.2, 0.4, None), (0.3, False, False)),
        ("all", (1.0, 0.0, None), (0.5, False, False)),
        # And those that can, or that are too many.
        ("majority", (1.0, 0.0, None), ("grader_failed",)),
        ("all", (1.0, 1.0, None), ("grader_failed",)),
        ("majority", (1.0, None, None), ("grader_failed",)),
        ("mean", (1.0, "provider_error", "budget_exhausted"), ("budget_exhausted",)),
        ("mean", (1.0, "provider_error", "timeout"), ("provider_error",)),
    ],
)
def test_votes_make_a_verdict_a_tie_or_an_error(
    rule: str, scores: tuple[float | str | None, ...], verdict: tuple[object, ...]
) -> None:
    assert said(rule, *scores) == verdict
    assert said("majority", 1.0, None, None, min_votes=1) == (1.0, True, False)


def test_each_criterion_of_a_rubric_is_voted() -> None:
    """Two of three name the capital, one of three finds it short: the jury passes what most of its judges pass."""
    rubric = [{"id": "right", "text": "Right", "required": True}, {"id": "short", "text": "Short"}]
    given = {}
    for judge, right, short in zip(JUDGES, (1.0, 0.8, 0.0), (1.0, 0.0, 0.2), strict=True):
        checks = [
            Check(id="right", text="Right", passed=right >= 0.5, score=right),
            Check(id="short", text="Short", passed=short >= 0.5, score=short),
        ]
        score = (right + short) / 2
        row = GraderRow(score=score, passed=score >= 0.4 and right >= 0.5, checks=checks)
        given[judge] = GradingResult(row, NO_TOKENS)
    row = jury_result(spec(rubric=rubric), given).row
    told = [(check.id, check.passed, check.score) for check in row.checks]
    assert told == [("right", True, pytest.approx(0.6)), ("short", False, pytest.approx(0.4))]
    assert (row.score, row.passed) == (pytest.approx(0.5), True)
    # By the mean of the scores a required criterion that most judges fail fails the answer.
    mean = jury_result(spec(rubric=[{**rubric[0], "weight": 0}, rubric[1]], vote="mean"), given).row
    assert mean.passed
    assert not jury_result(spec(rubric=[rubric[0], {**rubric[1], "required": True}], vote="mean"), given).row.passed


class Jury(dict[tuple[str, str], str | Fault]):
    """What a judge says of a question: a reply, or a fault; else it passes the answer. The bot echoes."""

    async def __call__(self, request: InvokeRequest) -> str:
        await asyncio.sleep(0)
        if request.target == "bot":
            return request.question
        question = next((name for _, name in self if f">\n{name}\n<" in request.question), "")
        reply = self.get((request.target, question), PASSES)
        if isinstance(reply, Fault):
            raise reply
        return reply


def folder_with(path: Path, *graders: Json, count: int = 3, max_calls: int = 1000) -> EvaluationFolder:
    (path / "judge.md").write_text("Is it right?")
    write_evaluation(path, cases(count), [*graders])
    client = FakeClient(Jury(), max_calls=max_calls, targets=("bot", *JUDGES, "dan"))
    return EvaluationFolder(path, client, concurrency=64)


async def run_again(folder: EvaluationFolder, **options: Any) -> Counter[str | None]:
    """Run once more; how often each target was asked."""
    await folder.run(**options)
    return Counter(request.target for request in folder.asked)


def verdicts(folder: EvaluationFolder) -> dict[str, GraderRow]:
    return {case: row.graders["jury"] for case, row in folder.rows_by_case().items()}


async def test_a_row_has_every_vote_and_records_tables_files_and_pages_show_them(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, JURY)
    folder.client.answer |= {("cyd", "q0"): FAILS, ("ada", "q1"): ProviderFailed("down")}
    summary = await folder.run()
    assert (summary.total.graded, summary.total.passed, summary.total.calls) == (3, 3, 11)
    verdict = verdicts(folder)["case-0"]
    told = {judge: (vote.passed, vote.reason, vote.calls) for judge, vote in verdict.votes.items()}
    assert told == {"ada": (True, "yes", 1), "bob": (True, "yes", 1), "cyd": (False, "no", 1)}
    assert (verdict.calls, verdict.passed, verdict.tied) == (3, True, False)
    assert len({vote.request_id for one in verdicts(folder).values() for vote in one.votes.values()}) == 9
    bare = folder.rows_by_case()["case-0"].without_content().graders["jury"]
    assert {vote.reason for vote in bare.votes.values()} == {None}
    told = folder.record["statistics"]["juries"]["jury"]
    # Of the answers with two votes or more seven pass and one fails: 1 - (2 / 8) / (14 / 56).
    assert told["alphaPass"] == pytest.approx(0.0)
    rate, lean = pytest.approx(2 / 3), pytest.approx(-1 / 3)
    counted = {"votes": 3, "missing": 0, "passRate": rate, "meanScore": rate, "leanPass": lean, "leanScore": lean}
    assert told["judges"]["cyd"] == counted
    report = read_report(folder.output)
    table = next(table for table in run_tables(report) if table.title == "By judge")
    assert [row[1:4] for row in table.rows] == [("ada", "2", "1"), ("bob", "3", "0"), ("cyd", "3", "0")]
    write_csv(tmp_path / "rows.csv", report)
    with (tmp_path / "rows.csv").open(encoding="utf-8-sig", newline="") as file:
        first, second, _ = csv.DictReader(file)
    shown = [first[f"jury {name}"] for name in ("pass", "tied", "cyd pass", "cyd score")]
    assert [*shown, second["jury ada pass"], second["jury bob pass"]] == ["1", "0", "0", "0.0", "", "1"]
    (log,) = write_inspect_logs(tmp_path / "logs", report)
    score = json.loads(log.read_text())["samples"][0]["scores"]["jury"]
    assert score["metadata"]["votes"]["cyd"] == {"score": 0.0, "pass": False, "reason": "no"}
    page, _ = next(case_pages(folder.output, report.run, [("case-1", [folder.rows_by_case()["case-1"]])]))
    outcomes = {vote.name: vote.outcome for vote in page.answers[0].verdicts[0].votes}
    assert outcomes == {"ada": "error", "bob": "passed", "cyd": "passed"}


async def test_a_failed_vote_changes_no_other_and_the_next_run_asks_only_for_it(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {**JURY, "min_votes": 3})
    folder.client.answer["bob", "q1"] = Rejected("too long")
    summary = await folder.run()
    assert (summary.total.graded, summary.total.errors) == (2, 1)
    before = verdicts(folder)["case-1"]
    assert (before.votes["bob"].error, before.votes["bob"].calls) == ("too long", 1)
    folder.client.answer["bob", "q1"] = FAILS
    assert await run_again(folder) == Counter(bob=1)
    assert folder.plan.calls_left.most == 1
    row, after = folder.rows_by_case()["case-1"], verdicts(folder)["case-1"]
    assert (row.status, after.passed, row.calls, after.calls) == (RowStatus.GRADED, True, 5, 4)
    assert {name: after.votes[name] for name in ("ada", "cyd")} == {name: before.votes[name] for name in ("ada", "cyd")}
    assert await run_again(folder) == Counter()


async def test_a_run_that_ends_in_the_middle_of_a_jury_asks_only_for_the_missing_votes(tmp_path: Path) -> None:
    """No row is written yet: the calls of the answer and of the given votes are the same, and are not charged again."""
    folder = folder_with(tmp_path, JURY, count=1)
    jury, asked = folder.client.answer, asyncio.Event()

    async def stuck(request: InvokeRequest) -> str:
        if request.target == "cyd":
            asked.set()
            await asyncio.Event().wait()
        return await jury(request)

    folder.client.answer = stuck
    running = asyncio.create_task(folder.run())
    await asked.wait()
    while len(folder.client.requests) < 4:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    folder.client.answer = jury
    assert await run_again(folder) == Counter(cyd=1)
    assert len(verdicts(folder)["case-0"].votes) == 3


async def test_a_tie_by_a_missing_vote_is_an_error_and_a_true_tie_is_tied(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {**JURY, "judge_targets": ["ada", "bob", "cyd", "dan"]}, count=2)
    for judge in ("ada", "bob"):
        folder.client.answer[judge, "q0"] = FAILS
    folder.client.answer["ada", "q1"] = FAILS
    for judge in ("bob", "cyd"):
        folder.client.answer[judge, "q1"] = ProviderFailed("down")
    summary = await folder.run()
    assert (summary.total.graded, summary.total.tied, summary.total.passed, summary.total.errors) == (1, 1, 0, 1)
    tied = folder.rows_by_case()["case-0"]
    assert (tied.tied, tied.passed, tied.score) == (True, False, 0.5)
    assert folder.rows_by_case()["case-1"].error is not None
    assert folder.record["totals"]["tied"] == 1


async def test_a_verdict_without_all_votes_counts_and_the_next_run_asks_for_the_others(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, JURY)
    folder.client.answer["cyd", "q2"] = ProviderFailed("down")
    summary = await folder.run()
    assert (summary.exit_code, summary.total.graded, summary.total.lacks_votes) == (ExitCode.PASSED, 3, 1)
    assert summary.has_open_trials
    assert await run_again(folder, rerun_policy=RerunPolicy(rerun_errors=False)) == Counter()
    folder.client.answer["cyd", "q2"] = FAILS
    assert await run_again(folder) == Counter(cyd=1)
    assert verdicts(folder)["case-2"].score == pytest.approx(2 / 3)
    # A vote in doubt is asked for again only where that was said.
    folder.client.answer["bob", "q1"] = ProviderFailed("down", charged=True)
    folder.client.fingerprints["bob"] = "another"
    assert await run_again(folder) == Counter(bob=3)
    assert await run_again(folder) == Counter()
    folder.client.answer.clear()
    assert await run_again(folder, rerun_policy=RerunPolicy(rerun_in_doubt=True)) == Counter(bob=1)


async def test_a_judge_that_changed_or_came_to_the_jury_is_asked_and_the_others_are_not(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, JURY)
    await folder.run()
    folder.client.fingerprints["bob"] = "another"
    assert await run_again(folder) == Counter(bob=3)
    write_evaluation(tmp_path, cases(3), [{**JURY, "judge_targets": ["ada", "bob", "dan"], "min_votes": 3}])
    assert await run_again(folder) == Counter(dan=3)
    (tmp_path / "judge.md").write_text("Is it quite right?")
    assert await run_again(folder) == Counter(ada=3, bob=3, dan=3)


@pytest.mark.parametrize(
    ("rule", "reply"), [("majority", '{"score": 1, "reason": "?"}'), ("mean", PASSES), ("all", '{"label": "good"}')]
)
async def test_votes_of_another_kind_are_no_votes(tmp_path: Path, rule: str, reply: str) -> None:
    folder = folder_with(tmp_path, {**JURY, "vote": rule, "min_votes": 3}, count=1)
    for judge in JUDGES:
        folder.client.answer[judge, "q0"] = '{"pass": true, "score": 1}'
    folder.client.answer["bob", "q0"] = reply
    await folder.run()
    verdict = verdicts(folder)["case-0"]
    assert [name for name, vote in verdict.votes.items() if vote.error] == ["bob"]
    assert verdict.error is not None
