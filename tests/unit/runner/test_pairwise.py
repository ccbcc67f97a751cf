"""Answers compared in pairs: what the judge is shown, what is asked again, what is counted, and what is refused."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ProviderFailed
from quintain.settings import read_settings
from quintain_runner.engine.run_settings import RunOptions, inspect_evaluation
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.report.report_files import write_csv, write_junit
from quintain_runner.report.run_file import read_run
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import exit_line
from quintain_runner.report.tables import run_tables
from quintain_runner.results.row import Row, RowStatus
from quintain_runner.statistics.pairwise import PairwiseStatistics
from support.evaluations import EXACT, EvaluationFolder, cases, write_evaluation
from support.fake_client import FakeClient

TARGETS = ("alpha", "beta", "gamma")
ARENA = {"name": "arena", "builtin": "pairwise", "against": "all", "judge_target": "sage"}
ANSWERS = {"alpha": "splendid", "beta": "passable", "gamma": "wretched"}
QUALITY = {"splendid": 3, "passable": 2, "wretched": 1}

Judge = Callable[[str, str], str]


def shown(request: InvokeRequest) -> dict[str, str]:
    """The sections of a judge's request."""
    return dict(re.findall(r"<data-\w+ (\w+)>\n(.*?)\n</data-\w+ \1>", request.question or "", re.DOTALL))


def better(first: str, second: str) -> str:
    """The choice of a judge that knows the quality of answers."""
    qualities = [QUALITY[re.sub(r"\d+$", "", answer)] for answer in (first, second)]
    return "tie" if qualities[0] == qualities[1] else "first" if qualities[0] > qualities[1] else "second"


class Contest(FakeClient):
    """Targets that answer with the word of their quality, and a judge that is told how to choose."""

    def __init__(self, judge: Judge = better, *, max_calls: int = 1000, targets: tuple[str, ...] = TARGETS) -> None:
        super().__init__(self.reply, max_calls=max_calls, targets=(*targets, "sage"))
        self.judge, self.answers = judge, ANSWERS

    async def reply(self, request: InvokeRequest) -> str:
        if request.target != "sage":
            return f"{self.answers[str(request.target)]}{(request.question or '').removeprefix('q')}"
        sections = shown(request)
        return json.dumps({"better": self.judge(sections["first"], sections["second"]), "reason": "so it is"})

    @property
    def judged(self) -> list[InvokeRequest]:
        return [request for request in self.requests if request.target == "sage"]


def contest(
    folder: Path, client: FakeClient, *, count: int = 4, targets: tuple[str, ...] = TARGETS, **grader: Any
) -> EvaluationFolder:
    write_evaluation(folder, cases(count), [{**EXACT, "weight": 1}, {**ARENA, **grader}], targets=list(targets))
    return EvaluationFolder(folder, client, targets=targets)


def statistics_of(folder: EvaluationFolder) -> PairwiseStatistics:
    return read_run(folder.output).statistics.pairwise["arena"]


def current(folder: EvaluationFolder) -> dict[tuple[str, str], Row]:
    return {(row.case_id, row.target): row for row in folder.rows()}


async def test_each_pair_is_asked_in_both_orders_and_no_target_is_named(tmp_path: Path) -> None:
    client = Contest()
    folder = contest(tmp_path, client, count=2)
    await folder.run()
    assert len(client.judged) == 2 * 3 * 2
    for request in client.judged:
        assert not any(name in request.question + request.system_prompt for name in TARGETS)
    pairs = sorted((shown(one)["first"], shown(one)["second"]) for one in client.judged if "q0" in one.question)
    assert pairs == sorted((f"{a}0", f"{b}0") for a in QUALITY for b in QUALITY if a != b)


async def test_a_row_has_its_comparisons_and_they_change_no_score_without_a_weight(tmp_path: Path) -> None:
    client = Contest()
    folder = contest(tmp_path, client, count=1)
    summary = await folder.run()
    rows = {target: row for (_, target), row in current(folder).items()}
    assert {name: row.graders["arena"].score for name, row in rows.items()} == {"alpha": 1.0, "beta": 0.5, "gamma": 0.0}
    assert {name: row.score for name, row in rows.items()} == dict.fromkeys(TARGETS, 0.0)
    assert [check.id for check in rows["beta"].graders["arena"].checks] == ["alpha", "gamma"]
    assert sum(row.calls for row in rows.values()) == client.used == summary.total.calls == 3 + 6
    assert summary.exit_code == 0
    # With a weight they are part of it.
    await contest(tmp_path, client, count=1, weight=1).run()
    scores = {target: row.score for (_, target), row in current(folder).items()}
    assert scores == {"alpha": 0.5, "beta": 0.25, "gamma": 0.0}


async def test_a_judge_that_always_says_first_gives_ties_and_a_position_bias(tmp_path: Path) -> None:
    folder = contest(tmp_path, Contest(lambda _, __: "first"))
    await folder.run()
    found = statistics_of(folder)
    assert all((pair.wins, pair.ties, pair.losses) == (0, 4, 0) for pair in found.pairs)
    assert {column.rate.value for column in found.columns.values()} == {0.5}
    assert {row.graders["arena"].score for row in current(folder).values()} == {0.5}
    assert [column.strength for column in found.columns.values()] == [pytest.approx(0.0)] * 3
    assert (found.position_bias.share, found.position_bias.first, found.position_bias.second) == (1.0, 12, 0)
    # Equal answers are a tie that nobody is asked about.
    (tmp_path / "equal").mkdir()
    client = Contest()
    client.answers = dict.fromkeys(TARGETS, "splendid")
    folder = contest(tmp_path / "equal", client)
    await folder.run()
    found = statistics_of(folder)
    assert all((pair.wins, pair.ties, pair.losses) == (0, 4, 0) for pair in found.pairs)
    assert (client.judged, found.position_bias.pairs, found.position_bias.share) == ([], 0, 0)


async def test_a_rerun_asks_nothing_and_one_more_case_asks_only_its_comparisons(tmp_path: Path) -> None:
    client = Contest()
    folder = contest(tmp_path, client, count=2)
    await folder.run()
    asked = len(client.requests)
    await folder.run()
    assert len(client.requests) == asked
    folder = contest(tmp_path, client, count=3)
    await folder.run()
    assert len(client.requests) == asked + 3 + 6
    assert folder.plan.calls_left.most == 9
    # An answer that is asked again is compared again; of the same text each comparison is the same call.
    client.fingerprints["gamma"] = "another"
    await folder.run()
    assert folder.called("gamma", "sage") == (3, 0)
    assert {row.graders["arena"].score for row in current(folder).values()} == {0.0, 0.5, 1.0}
    # Against one target only pairs with it are asked.
    (tmp_path / "one").mkdir()
    folder = contest(tmp_path / "one", Contest(), count=1, against="beta")
    await folder.run()
    scores = {target: row.graders["arena"].score for (_, target), row in current(folder).items()}
    assert (folder.called("sage"), scores) == ((4,), {"alpha": 1.0, "beta": 0.5, "gamma": 0.0})


async def test_an_opponent_whose_earlier_turn_changed_is_compared_again(tmp_path: Path) -> None:
    client, said = Contest(lambda _, __: "tie", targets=("alpha", "beta")), ["good", "better"]

    async def answer(request: InvokeRequest) -> str:
        if request.target == "sage":
            return await client.reply(request)
        return said[0] if len(request.messages or ()) == 1 else "the same last words"

    client.answer = answer
    case = {"id": "c", "question": "q", "expected": "a", "turns": ["and?"]}
    write_evaluation(tmp_path, [case], [EXACT, ARENA], targets=["alpha", "beta"])
    folder = EvaluationFolder(tmp_path, client, targets=("alpha", "beta"))
    said.reverse()
    await folder.run(targets=("alpha",))
    said.reverse()
    await folder.run()
    assert folder.called("alpha", "beta", "sage") == (0, 2, 2)
    # Only what it said before its last words is another.
    said[0], client.fingerprints["beta"] = "best", "another"
    await folder.run()
    assert folder.called("alpha", "beta", "sage") == (0, 2, 2)


async def test_a_run_that_is_killed_asks_only_the_comparisons_that_are_missing(tmp_path: Path) -> None:
    def dies(first: str, second: str) -> str:
        if len(folder.client.requests) > 6 + 5:
            raise RuntimeError("killed")
        return better(first, second)

    folder = contest(tmp_path, Contest(dies), count=2)
    folder.concurrency = 1
    with pytest.raises(RuntimeError, match="killed"):
        await folder.run()
    judged = [row for row in folder.rows() if "arena" in row.graders]
    pairs = [(row, one.opponent) for row in judged for one in row.graders["arena"].comparisons or ()]
    compared = {frozenset((row.target, opponent, row.case_id)) for row, opponent in pairs}
    assert compared
    # Another client is another ledger: what the store holds is not asked again, also where no ledger remembers it.
    again = Contest()
    folder.client = again
    await folder.run()
    assert len(again.requests) == len(again.judged) == 12 - 5
    assert all(row.graders["arena"].score is not None for row in current(folder).values())


async def test_a_failed_vote_is_asked_again_alone(tmp_path: Path) -> None:
    def fails_once(first: str, second: str) -> str:
        if (first, second) == ("splendid0", "wretched0") and not failed:
            failed.append(first)
            raise ProviderFailed("out of order", charged=True)
        return better(first, second)

    failed: list[str] = []
    client = Contest(fails_once)
    folder = contest(tmp_path, client, count=1)
    summary = await folder.run()
    statuses = {target: row.status for (_, target), row in current(folder).items()}
    assert statuses == {"alpha": RowStatus.IN_DOUBT, "beta": RowStatus.GRADED, "gamma": RowStatus.IN_DOUBT}
    assert summary.exit_code == 1
    asked = len(client.requests)
    summary = await folder.run(rerun_policy=RerunPolicy(rerun_in_doubt=True))
    assert len(client.requests) == asked + 1
    rows = current(folder)
    assert summary.exit_code == 0
    assert sum(row.calls for row in rows.values()) == client.used


async def test_a_spent_budget_leaves_the_rows_as_they_are(tmp_path: Path) -> None:
    client = Contest(max_calls=3 + 4)
    folder = contest(tmp_path, client, count=1)
    summary = await folder.run()
    assert client.used == 7
    assert (summary.exit_code, summary.total.graded, summary.has_open_trials) == (4, 3, True)
    assert summary.total.uncompared == 2
    assert "2 rows are not yet compared" in exit_line(summary, "quintain run")
    client.max_calls = 9
    summary = await folder.run()
    assert (summary.exit_code, client.used) == (0, 9)


async def test_the_answers_of_another_run_are_opponents(tmp_path: Path) -> None:
    base, own = tmp_path / "base", tmp_path / "own"
    base.mkdir()
    own.mkdir()
    await contest(base, Contest(), targets=("beta", "gamma"), against="beta").run()
    client = Contest()
    folder = contest(own, client, targets=("alpha", "beta"), against="../base/out/")
    assert "no target alpha" in await problems(folder)
    said = await problems(contest(own, client, count=7, targets=("beta",), against="../base/out"))
    assert all(part in said for part in ("3", "case-4")), "it has no such cases"
    folder = contest(own, client, targets=("beta",), against="../base/out/")
    client.answers = {"beta": "splendid"}
    summary = await folder.run()
    assert len(client.judged) == 4 * 2
    assert summary.exit_code == 0
    row = current(folder)["case-0", "beta"]
    verdict = row.graders["arena"]
    assert [(one.opponent, one.score) for one in verdict.comparisons or ()] == [("beta (../base/out/)", 1.0)]
    assert (row.calls, verdict.calls) == (3, 2)


async def problems(folder: EvaluationFolder, **options: Any) -> str:
    targets = {name: {"provider": "mock"} for name in (*TARGETS, "sage")}
    (folder.path / "quintain.yaml").write_text(json.dumps({"targets": targets}))
    options = RunOptions(path=folder.path / "eval.yaml", output=folder.output, **options)
    return "\n".join((await inspect_evaluation(options, read_settings({}))).problems)


@pytest.mark.parametrize(
    ("against", "targets", "said"),
    [
        ("god", TARGETS, "unknown target 'god'"),
        ("all", ("alpha",), "compared with nothing"),
        ("alpha", ("alpha",), "compared with itself"),
        ("./out", TARGETS, "run's own folder"),
        ("runs/none", TARGETS, "run.json"),
    ],
)
async def test_what_compares_nothing_is_refused(
    tmp_path: Path, against: str, targets: tuple[str, ...], said: str
) -> None:
    assert said in await problems(contest(tmp_path, Contest(), against=against, targets=targets))
    assert "--no-content" in await problems(contest(tmp_path, Contest()), keeps_content=False)


async def test_an_answer_whose_opponent_has_none_is_not_compared_yet_and_is_no_failure(tmp_path: Path) -> None:
    client = Contest()
    reply, is_down = client.answer, True

    async def answer(request: InvokeRequest) -> str:
        if is_down and request.target == "beta" and request.question == "q0":
            raise ProviderFailed("down")
        return await reply(request)

    client.answer = answer
    write_evaluation(tmp_path, cases(3), [ARENA], targets=["alpha", "beta"], threshold=0.5)
    folder = EvaluationFolder(tmp_path, client, targets=("alpha", "beta"))
    for judged in (4, 4):
        summary = await folder.run()
        assert len(client.judged) == judged
        row = current(folder)["case-0", "alpha"]
        assert (row.status, row.score, row.error) == (RowStatus.UNCOMPARED, None, None)
        counts = summary.per_target["alpha"]
        assert (counts.graded, counts.passed, counts.unscored, counts.waiting) == (2, 2, 1, 0)
        assert (counts.mean_score, summary.exit_code) == (1.0, 1)
    report = read_report(folder.output, summary)
    assert "1 answer has no score: not compared yet" in str(run_tables(report)[0].notes)
    assert "2/2" in run_tables(report)[0].rows[0]
    write_junit(tmp_path / "junit.xml", [report])
    suite = ET.parse(tmp_path / "junit.xml").getroot().findall("testsuite")[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "0", "1")
    write_csv(tmp_path / "rows.csv", report)
    assert "case-0,alpha,1,uncompared,," in (tmp_path / "rows.csv").read_text()
    is_down = False
    summary = await folder.run()
    assert (len(client.judged), summary.total.graded, summary.total.unscored, summary.exit_code) == (6, 6, 0, 0)
    # Alone the grader scores rows by the share of comparisons won.
    scores = {(f"case-{n}", name): won for n in range(3) for name, won in (("alpha", 1.0), ("beta", 0.0))}
    assert {key: row.score for key, row in current(folder).items()} == scores
    assert (summary.total.passed, summary.total.mean_score) == (3, 0.5)
