"""Several judges: how they vote, what becomes of a missing vote, and which votes the next run asks for."""

from __future__ import annotations

import asyncio
import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

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
from quintain_runner.results.row import Check, GraderRow, Row, RowStatus
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
    names = [f"judge-{number}" for number in range(len(scores))]
    rows = [
        GraderRow(score=score, passed=score >= 0.5, calls=1)
        if isinstance(score, float)
        else GraderRow(error="no", calls=1)
        for score in scores
    ]
    codes = [score if isinstance(score, str) else "grader_failed" for score in scores]
    told = zip(names, rows, codes, strict=True)
    return {name: GradingResult(row, NO_TOKENS, error_code=code) for name, row, code in told}


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


def test_one_vote_is_enough_where_the_file_says_so() -> None:
    assert said("majority", 1.0, None, None, min_votes=1) == (1.0, True, False)


@pytest.mark.parametrize(
    "options",
    [
        {"judge_targets": ["ada"]},
        {"judge_targets": []},
        {"judge_targets": ["ada", "bob", "ada"]},
        {"judge_target": "ada"},
        {"min_votes": 4},
        {"min_votes": 0},
        {"vote": "plurality"},
        {"judge_targets": None, "vote": "mean"},
        {"judge_targets": None, "min_votes": 2},
    ],
)
def test_a_jury_that_could_not_come_to_a_verdict_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(**options)


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
    assert [(check.id, check.passed, check.score) for check in row.checks] == [
        ("right", True, pytest.approx(0.6)),
        ("short", False, pytest.approx(0.4)),
    ]
    assert (row.score, row.passed) == (pytest.approx(0.5), True)
    # By the mean of the scores a required criterion that most judges fail fails the answer.
    mean = jury_result(spec(rubric=[{**rubric[0], "weight": 0}, rubric[1]], vote="mean"), given).row
    assert mean.passed
    assert not jury_result(spec(rubric=[rubric[0], {**rubric[1], "required": True}], vote="mean"), given).row.passed


class Jury:
    """What each judge says of each question: a reply, or a fault; else it passes the answer. The bot echoes."""

    def __init__(self) -> None:
        self.replies: dict[tuple[str, str], str | Fault] = {}

    def say(self, judge: str, question: str, reply: str | Fault) -> None:
        self.replies[judge, question] = reply

    async def __call__(self, request: InvokeRequest) -> str:
        await asyncio.sleep(0)
        if request.target == "bot":
            return request.question or ""
        question = next((name for _, name in self.replies if f">\n{name}\n<" in (request.question or "")), "")
        reply = self.replies.get((request.target or "", question), PASSES)
        if isinstance(reply, Fault):
            raise reply
        return reply


def folder_with(path: Path, *graders: Json, count: int = 3, max_calls: int = 1000) -> EvaluationFolder:
    (path / "judge.md").write_text("Is it right?")
    write_evaluation(path, cases(count), [*graders])
    client = FakeClient(Jury(), max_calls=max_calls, targets=("bot", *JUDGES, "dan"))
    return EvaluationFolder(path, client, concurrency=64)


def jury_of(folder: EvaluationFolder) -> Jury:
    assert isinstance(folder.client.answer, Jury)
    return folder.client.answer


async def run_again(folder: EvaluationFolder, **options: Any) -> Counter[str | None]:
    """Run once more; how often each target was asked."""
    folder.client.requests.clear()
    await folder.run(**options)
    return Counter(request.target for request in folder.client.requests)


def verdicts(folder: EvaluationFolder) -> dict[str, GraderRow]:
    return {case: row.graders["jury"] for case, row in folder.rows_by_case().items()}


async def test_a_row_has_every_vote_and_run_json_how_the_judges_agree(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, JURY)
    jury_of(folder).say("cyd", "q0", FAILS)
    summary = await folder.run()
    assert (summary.total.graded, summary.total.passed, summary.total.calls) == (3, 3, 12)
    verdict = verdicts(folder)["case-0"]
    assert {judge: (vote.passed, vote.reason, vote.calls) for judge, vote in verdict.votes.items()} == {
        "ada": (True, "yes", 1),
        "bob": (True, "yes", 1),
        "cyd": (False, "no", 1),
    }
    assert (verdict.calls, verdict.passed, verdict.tied) == (3, True, False)
    assert len({vote.request_id for one in verdicts(folder).values() for vote in one.votes.values()}) == 9
    told = json.loads((folder.output / "run.json").read_text())["statistics"]["juries"]["jury"]
    # Eight votes pass and one fails: 1 - (2 / 9) / (16 / 72).
    assert told["alphaPass"] == pytest.approx(0.0)
    assert told["judges"]["cyd"] == {
        "votes": 3,
        "missing": 0,
        "passRate": pytest.approx(2 / 3),
        "meanScore": pytest.approx(2 / 3),
        "leanPass": pytest.approx(-1 / 3),
        "leanScore": pytest.approx(-1 / 3),
    }


async def test_where_all_votes_are_of_one_value_there_is_no_agreement_to_tell(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, JURY)
    await folder.run()
    told = json.loads((folder.output / "run.json").read_text())["statistics"]["juries"]["jury"]
    assert (told["alphaPass"], told["alphaScore"], told["answers"]) == (None, None, 3)


async def test_a_failed_vote_changes_no_other_and_the_next_run_asks_only_for_it(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {**JURY, "min_votes": 3})
    jury_of(folder).say("bob", "q1", Rejected("too long"))
    summary = await folder.run()
    assert (summary.total.graded, summary.total.errors) == (2, 1)
    before = verdicts(folder)["case-1"]
    assert (before.votes["bob"].error, before.votes["bob"].calls) == ("too long", 1)
    jury_of(folder).say("bob", "q1", FAILS)
    assert await run_again(folder) == Counter(bob=1)
    assert folder.plan is not None
    assert folder.plan.calls_left.most == 1
    row, after = folder.rows_by_case()["case-1"], verdicts(folder)["case-1"]
    assert (row.status, after.passed, row.calls, after.calls) == (RowStatus.GRADED, True, 5, 4)
    assert {name: after.votes[name] for name in ("ada", "cyd")} == {name: before.votes[name] for name in ("ada", "cyd")}
    assert await run_again(folder) == Counter()


async def test_a_run_that_ends_in_the_middle_of_a_jury_asks_only_for_the_missing_votes(tmp_path: Path) -> None:
    """No row is written yet: the calls of the answer and of the given votes are the same, and are not charged again."""
    folder = folder_with(tmp_path, JURY, count=1)
    jury, asked = jury_of(folder), asyncio.Event()

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


async def test_the_call_of_a_vote_is_the_same_whatever_other_votes_and_graders_do(tmp_path: Path) -> None:
    ids = []
    for name, fault in (("first", None), ("second", Rejected("no"))):
        (tmp_path / name).mkdir()
        other: Json = {"name": "other", "builtin": "llm-judge", "prompt": "judge.md", "judge_target": "dan"}
        folder = folder_with(tmp_path / name, other, JURY, count=1)
        if fault is not None:
            jury_of(folder).say("ada", "q0", fault)
        await folder.run()
        ids.append({judge: vote.request_id for judge, vote in verdicts(folder)["case-0"].votes.items()})
    assert ids[0] == ids[1]


async def test_a_tie_by_a_missing_vote_is_an_error_and_a_true_tie_is_tied(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {**JURY, "judge_targets": ["ada", "bob", "cyd", "dan"]}, count=2)
    for judge in ("ada", "bob"):
        jury_of(folder).say(judge, "q0", FAILS)
    jury_of(folder).say("ada", "q1", FAILS)
    for judge in ("bob", "cyd"):
        jury_of(folder).say(judge, "q1", ProviderFailed("down"))
    summary = await folder.run()
    assert (summary.total.graded, summary.total.tied, summary.total.passed, summary.total.errors) == (1, 1, 0, 1)
    tied = folder.rows_by_case()["case-0"]
    assert (tied.tied, tied.passed, tied.score) == (True, False, 0.5)
    assert folder.rows_by_case()["case-1"].error is not None
    totals = json.loads((folder.output / "run.json").read_text())["totals"]
    assert totals["tied"] == 1


async def test_a_verdict_without_all_votes_counts_and_the_next_run_asks_for_the_others(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, JURY)
    jury_of(folder).say("cyd", "q2", ProviderFailed("down"))
    summary = await folder.run()
    assert (summary.exit_code, summary.total.graded, summary.total.lacks_votes) == (ExitCode.PASSED, 3, 1)
    assert summary.has_open_trials
    assert await run_again(folder, rerun_policy=RerunPolicy(rerun_errors=False)) == Counter()
    jury_of(folder).say("cyd", "q2", FAILS)
    assert await run_again(folder) == Counter(cyd=1)
    assert verdicts(folder)["case-2"].score == pytest.approx(2 / 3)


async def test_a_vote_in_doubt_is_asked_for_again_only_where_that_was_said(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, JURY, count=1)
    jury_of(folder).say("cyd", "q0", ProviderFailed("down", charged=True))
    await folder.run()
    assert await run_again(folder) == Counter()
    jury_of(folder).replies.clear()
    assert await run_again(folder, rerun_policy=RerunPolicy(rerun_in_doubt=True)) == Counter(cyd=1)


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
        jury_of(folder).say(judge, "q0", '{"pass": true, "score": 1}')
    jury_of(folder).say("bob", "q0", reply)
    await folder.run()
    verdict = verdicts(folder)["case-0"]
    assert [name for name, vote in verdict.votes.items() if vote.error] == ["bob"]
    assert verdict.error is not None


async def test_tables_files_and_pages_show_the_votes(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, JURY, count=2)
    jury_of(folder).say("cyd", "q0", FAILS)
    jury_of(folder).say("ada", "q1", ProviderFailed("down"))
    await folder.run()
    report = read_report(folder.output)
    table = next(table for table in run_tables(report) if table.title == "by judge")
    assert [row[:4] for row in table.rows] == [
        ("jury", "ada", "1", "1"),
        ("jury", "bob", "2", "0"),
        ("jury", "cyd", "2", "0"),
    ]
    write_csv(tmp_path / "rows.csv", report)
    with (tmp_path / "rows.csv").open(encoding="utf-8-sig", newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["jury pass"], first["jury tied"], first["jury cyd pass"], first["jury cyd score"]) == (
        "1", "0", "0", "0.0",
    )  # fmt: skip
    assert (second["jury ada pass"], second["jury bob pass"]) == ("", "1")
    (log,) = write_inspect_logs(tmp_path / "logs", report)
    score = json.loads(log.read_text())["samples"][0]["scores"]["jury"]
    assert score["metadata"]["votes"]["cyd"] == {"score": 0.0, "pass": False, "reason": "no"}
    page, _ = next(case_pages(folder.output, report.run, [("case-1", [folder.rows_by_case()["case-1"]])]))
    (shown,) = page.answers[0].verdicts
    assert [(vote.name, vote.outcome) for vote in shown.votes] == [
        ("ada", "error"),
        ("bob", "passed"),
        ("cyd", "passed"),
    ]


async def test_rows_without_contents_keep_votes_and_no_reasons(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, JURY, count=1)
    await folder.run(keeps_content=False)
    (row,) = folder.rows()
    assert {(vote.passed, vote.reason) for vote in row.graders["jury"].votes.values()} == {(True, None)}
    assert Row.model_validate_json(row.to_line()) == row


@pytest.mark.timeout(600)
async def test_five_thousand_cases_with_four_judges_and_a_jury_of_three_keep_exactly_max_calls(tmp_path: Path) -> None:
    """Eight calls for each row: a budget of 4,003 buys 500 whole rows, and no call more."""
    judges: list[Json] = [
        {"name": f"judge-{number}", "builtin": "llm-judge", "prompt": "judge.md", "judge_target": "dan"}
        for number in range(4)
    ]
    folder = folder_with(tmp_path, *judges, JURY, count=5000, max_calls=4003)
    summary = await folder.run()
    assert (summary.exit_code, summary.total.graded, summary.total.errors) == (ExitCode.BUDGET_SPENT, 500, 0)
    assert (summary.total.calls, folder.client.used, folder.client.reserved) == (4000, 4000, 0)
    assert folder.plan is not None
    assert folder.plan.calls_left.most == 5000 * 8
