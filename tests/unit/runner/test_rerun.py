"""The same command again: it asks and grades exactly what changed, by the count of a stub in the provider's place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ProviderFailed
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.engine.run_settings import ErrorPolicy
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.report.report_files import write_csv, write_junit
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import ExitCode, RunSummary
from quintain_runner.report.tables import run_tables
from quintain_runner.results.row import Row, RowStatus
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.statistics.analysis import analyse
from quintain_runner.statistics.frame import build_frames
from support.evaluations import EXACT, EvaluationFolder, Json, cases, write_evaluation, write_script
from support.fake_client import FakeClient

TARGETS = ("bot", "judge")

JUDGED: Json = {"name": "judged", "builtin": "llm-judge", "prompt": "prompt.md", "judge_target": "judge"}

PASSES = (
    "import helper, json, pathlib; print(json.dumps({'pass': True, 'reason': pathlib.Path('rules.txt').read_text()}))"
)


async def answer(request: InvokeRequest) -> str:
    """The judge passes everything; the target under test repeats the question."""
    return '{"pass": true}' if request.target == "judge" else request.question or ""


@dataclass
class World:
    """An evaluation of four cases, a judge and a script, which a test changes and runs again."""

    folder: EvaluationFolder
    rows: list[Json]
    graders: list[Json]

    def write(self, **settings: object) -> None:
        write_evaluation(self.folder.path, self.rows, self.graders, **settings)

    async def run(
        self, policy: RerunPolicy | None = None, evaluation: Evaluation | None = None, **options: Any
    ) -> RunSummary:
        """Run it; what became of the rows of before is in ``plan``."""
        self.folder.client.requests.clear()
        settings = self.folder.settings(rerun_policy=policy or RerunPolicy(), **options)
        return await self.folder.run(replace(settings, evaluation=evaluation or settings.evaluation))

    @property
    def plan(self) -> RerunPlan | None:
        return self.folder.plan

    @property
    def asked(self) -> int:
        """How often the target under test was asked by the last command."""
        return sum(request.target == "bot" for request in self.folder.client.requests)

    @property
    def judged(self) -> int:
        """How often the judge was asked by the last command."""
        return sum(request.target == "judge" for request in self.folder.client.requests)


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "prompt.md").write_text("Is it right?")
    (tmp_path / "rules.txt").write_text("first rules")
    (tmp_path / "helper.py").write_text("")
    script: Json = {
        "name": "script",
        "command": write_script(tmp_path, "script.py", PASSES),
        "judge_target": "judge",
        "depends_on": ["rules.txt"],
    }
    folder = EvaluationFolder(tmp_path, FakeClient(answer, targets=TARGETS))
    world = World(folder, cases(4), [EXACT, JUDGED, script])
    world.write()
    return world


def change_target(world: World) -> None:
    world.folder.client.fingerprints["bot"] = "another"


def change_judge_model(world: World) -> None:
    world.folder.client.fingerprints["judge"] = "another"


def change_expected(world: World) -> None:
    world.rows[0]["expected"] = "something else"


def change_metadata(world: World) -> None:
    world.rows[1]["topic"] = "new"


def change_question(world: World) -> None:
    world.rows[2]["question"] = "another question"


def change_system_prompt(world: World) -> None:
    world.rows[2]["system_prompt"] = "be brief"


def reorder(world: World) -> None:
    world.rows.reverse()


def add_case(world: World) -> None:
    world.rows.append({"id": "new", "question": "q", "expected": "q"})


def remove_case(world: World) -> None:
    world.rows.pop()


def change_exact(world: World) -> None:
    world.graders[0] = {**EXACT, "ignore_case": True}


def add_grader(world: World) -> None:
    world.graders.append({**EXACT, "name": "more"})


def remove_grader(world: World) -> None:
    world.graders.pop(1)


def rewrite_prompt(world: World) -> None:
    (world.folder.path / "prompt.md").write_text("Is it polite?")


def rewrite_script(world: World) -> None:
    write_script(world.folder.path, "script.py", PASSES + "  # changed")


def rewrite_dependency(world: World) -> None:
    (world.folder.path / "rules.txt").write_text("second rules")


def rewrite_import(world: World) -> None:
    (world.folder.path / "helper.py").write_text("changed = True")


def change_timeout(world: World) -> None:
    world.graders[1] = {**JUDGED, "timeout_seconds": 30}


def change_nothing(world: World) -> None:
    pass


#: What is changed, and then: rows kept, graded again, asked again, new, left out; calls of the target and of the judge.
CHANGES: list[tuple[Callable[[World], None], tuple[int, int, int, int, int], tuple[int, int]]] = [
    (change_nothing, (4, 0, 0, 0, 0), (0, 0)),
    (change_timeout, (4, 0, 0, 0, 0), (0, 0)),
    (reorder, (4, 0, 0, 0, 0), (0, 0)),
    (change_target, (0, 0, 4, 0, 0), (4, 4)),
    (change_question, (3, 0, 1, 0, 0), (1, 1)),
    (change_system_prompt, (3, 0, 1, 0, 0), (1, 1)),
    (change_expected, (3, 1, 0, 0, 0), (0, 1)),
    (change_metadata, (3, 1, 0, 0, 0), (0, 1)),
    (add_case, (4, 0, 0, 1, 0), (1, 1)),
    (remove_case, (3, 0, 0, 0, 1), (0, 0)),
    (change_exact, (0, 4, 0, 0, 0), (0, 0)),
    (add_grader, (0, 4, 0, 0, 0), (0, 0)),
    (remove_grader, (0, 4, 0, 0, 0), (0, 0)),
    (rewrite_prompt, (0, 4, 0, 0, 0), (0, 4)),
    (change_judge_model, (0, 4, 0, 0, 0), (0, 4)),
    (rewrite_script, (0, 4, 0, 0, 0), (0, 0)),
    (rewrite_dependency, (0, 4, 0, 0, 0), (0, 0)),
    (rewrite_import, (0, 4, 0, 0, 0), (0, 0)),
]


@pytest.mark.parametrize(("change", "planned", "calls"), CHANGES, ids=[change.__name__ for change, _, _ in CHANGES])
async def test_the_same_command_again_does_exactly_what_changed(
    world: World,
    change: Callable[[World], None],
    planned: tuple[int, int, int, int, int],
    calls: tuple[int, int],
) -> None:
    await world.run()
    assert (world.asked, world.judged) == (4, 4)
    change(world)
    world.write()
    summary = await world.run()
    plan = world.plan
    assert plan is not None
    assert (plan.kept, plan.graded_again, plan.asked_again, plan.new, plan.left_out) == planned
    assert (world.asked, world.judged) == calls
    assert (summary.total.graded, summary.total.trials) == (len(world.rows), len(world.rows))
    assert summary.total.calls_without_row == 0
    report = read_report(world.folder.output)
    names = [str(grader["name"]) for grader in world.graders]
    assert {row.case_id: list(row.graders) for row in report.rows()} == {str(row["id"]): names for row in world.rows}
    await world.run()
    assert world.folder.client.requests == []


async def test_a_function_runs_again_when_what_its_module_imports_changes(world: World) -> None:
    (world.folder.path / "neighbour.py").write_text("VERDICT = True")
    code = "import quintain\nfrom neighbour import VERDICT\n@quintain.grader\ndef agrees(output): return VERDICT"
    (world.folder.path / "judges.py").write_text(code)
    world.graders[:] = [{"name": "agrees", "function": "judges:agrees"}]
    world.write()
    await world.run()
    (world.folder.path / "neighbour.py").write_text("VERDICT = False")
    await world.run()
    assert {row.graders["agrees"].passed for row in world.folder.rows()} == {False}
    assert world.asked == 0


async def test_the_new_answers_and_verdicts_replace_the_old_ones(world: World) -> None:
    await world.run()
    change_target(world)
    rewrite_dependency(world)

    async def new_model(request: InvokeRequest) -> str:
        return '{"pass": false}' if request.target == "judge" else "new answer"

    world.folder.client.answer = new_model
    await world.run()
    for row in world.folder.rows():
        assert (row.output, row.graders["judged"].passed, row.graders["script"].reason) == (
            "new answer",
            False,
            "second rules",
        )
        assert (row.tries, row.calls) == (2, 4)


async def test_a_case_that_comes_back_counts_again_without_a_call(world: World) -> None:
    await world.run()
    gone = world.rows.pop(0)
    world.write()
    summary = await world.run()
    assert (summary.total.graded, len(world.folder.rows())) == (3, 4)
    world.rows.append(gone)
    world.write()
    summary = await world.run()
    assert (summary.total.graded, world.folder.client.requests) == (4, [])


async def test_rows_whose_target_changed_are_in_no_table_before_they_are_asked_again(world: World) -> None:
    await world.run()
    change_target(world)
    world.folder.client.max_calls = world.folder.client.used + 2
    world.folder.concurrency = 1
    summary = await world.run()
    assert (summary.total.graded, summary.total.waiting + summary.total.errors) == (1, 3)
    counted = [row for row in read_report(world.folder.output).rows() if row.status is RowStatus.GRADED]
    assert {row.fingerprints.target for row in counted} == {"another"}
    report = read_report(world.folder.output)
    assert report.analysis == analyse(build_frames(counted, ["bot"]))


async def test_keep_stale_keeps_the_rows_and_marks_them(world: World) -> None:
    await world.run()
    change_target(world)
    rewrite_prompt(world)
    summary = await world.run(RerunPolicy(keep_stale=True))
    assert (world.folder.client.requests, summary.total.graded) == ([], 4)
    assert {tuple(row.stale or ()) for row in read_report(world.folder.output).rows()} == {
        ("target bot changed", "grader judged changed")
    }
    for report in (read_report(world.folder.output), read_report(world.folder.output, summary)):
        assert report.stale_rows == 4
        assert run_tables(report)[0].notes[0].startswith("4 of these rows are stale")
        write_csv(world.folder.path / "rows.csv", report)
        write_junit(world.folder.path / "junit.xml", report)
        assert (world.folder.path / "rows.csv").read_text().count("target bot changed; grader judged changed") == 4
        assert (world.folder.path / "junit.xml").read_text().count("stale: target bot changed") == 4
    await world.run()
    assert read_report(world.folder.output).stale_rows == 0
    assert (world.asked, world.judged) == (4, 4)
    assert [row.stale for row in world.folder.rows()] == [None] * 4


async def test_a_change_that_is_taken_back_keeps_the_rows_as_they_were(world: World) -> None:
    await world.run()
    before = world.folder.rows()
    change_target(world)
    await world.run(RerunPolicy(keep_stale=True))
    world.folder.client.fingerprints["bot"] = "fingerprint-of-bot"
    await world.run()
    assert (world.folder.client.requests, sorted(world.folder.rows(), key=by_key)) == ([], sorted(before, key=by_key))


def by_key(row: Row) -> tuple[str, str, int]:
    return row.key


async def test_an_answer_of_another_configuration_is_never_that_rows_answer(world: World) -> None:
    world.folder.client.answered_fingerprints["bot"] = "another"
    summary = await world.run(error_policy=ErrorPolicy(max_errors=0))
    assert (summary.total.graded, summary.total.errors, world.judged) == (0, 4, 0)
    assert {(row.error.code, row.output, row.calls) for row in world.folder.rows() if row.error} == {
        ("target_changed", None, 1)
    }
    del world.folder.client.answered_fingerprints["bot"]
    summary = await world.run()
    assert (summary.total.graded, world.asked) == (4, 4)


async def test_a_few_answers_of_another_configuration_in_a_row_park_the_target(world: World) -> None:
    world.folder.client.answered_fingerprints["bot"] = "another"
    summary = await world.run(concurrency=64)
    assert (summary.exit_code, world.asked) == (ExitCode.ERRORS, 3)
    assert {name: parked.code for name, parked in summary.parked_targets.items()} == {"bot": "target_changed"}
    world.folder.client.answered_fingerprints.clear()
    summary = await world.run()
    assert (summary.exit_code, summary.total.graded, world.asked) == (ExitCode.PASSED, 4, 4)


async def test_a_verdict_of_another_configuration_is_none(world: World) -> None:
    world.folder.client.answered_fingerprints["judge"] = None
    await world.run(error_policy=ErrorPolicy(max_errors=0))
    assert {row.error.code for row in world.folder.rows() if row.error} == {"target_changed"}
    world.folder.client.answered_fingerprints.clear()
    summary = await world.run()
    assert (summary.total.graded, world.asked, world.judged) == (4, 0, 4)


async def test_a_target_whose_workers_report_no_fingerprint_is_named(world: World) -> None:
    world.folder.client.fingerprints.clear()
    await world.run()
    await world.run()
    assert world.plan is not None
    assert list(world.plan.lines()) == [
        "4 rows kept",
        "no worker reports a fingerprint of bot, judge: whether that changed is not known; --fresh asks everything",
    ]
    world.folder.client.fingerprints["bot"] = "known now"
    await world.run()
    assert world.asked == 4


async def test_the_plan_is_told_in_words(world: World) -> None:
    await world.run()
    change_expected(world)
    change_question(world)
    add_case(world)
    world.rows.pop(1)
    world.write()
    await world.run()
    assert world.plan is not None
    assert " | ".join(world.plan.lines()) == (
        "1 rows kept · 1 graded again (expected changed) · 1 asked again (question changed) · 1 new · "
        "1 left out (the case is not in the dataset)"
    )


async def test_the_record_keeps_what_each_command_did(world: World) -> None:
    await world.run()
    change_target(world)
    await world.run()
    record = json.loads((world.folder.output / "run.json").read_text())
    assert [entry["plan"]["new"] for entry in record["history"]] == [4, 0]
    assert [entry["targets"]["bot"] for entry in record["history"]] == ["fingerprint-of-bot", "another"]
    assert record["fingerprints"]["targets"] == {"bot": "another", "judge": "fingerprint-of-judge"}


async def test_rows_of_a_grader_that_cannot_be_run_any_more_are_kept_and_marked(world: World) -> None:
    await world.run()
    before = {row.case_id: row.graders for row in world.folder.rows()}
    add_case(world)
    world.write()
    evaluation = replace(world.folder.settings().evaluation, unavailable_graders={"script": "no program"})
    (world.folder.path / "script.py").unlink()
    summary = await world.run(RerunPolicy(keep_stale=True), evaluation=evaluation)
    assert world.folder.client.requests == []
    assert (summary.total.graded, summary.total.stale, summary.total.waiting) == (4, 4, 1)
    assert summary.exit_code is ExitCode.ERRORS
    assert {row.case_id: row.graders for row in world.folder.rows()} == before
    report = read_report(world.folder.output)
    assert {tuple(row.stale or ()) for row in report.rows()} == {("grader script cannot be run",)}
    assert (report.summary.unavailable_graders, report.summary.exit_code) == ({"script": "no program"}, 1)
    write_script(world.folder.path, "script.py", PASSES)
    summary = await world.run()
    assert (world.asked, summary.total.graded, summary.total.stale, summary.exit_code) == (1, 5, 0, ExitCode.PASSED)
    assert {row.case_id: row.graders for row in world.folder.rows() if row.case_id in before} == before


async def test_the_forecast_of_a_spent_budget_counts_what_is_left_to_do(world: World) -> None:
    world.graders.pop()
    world.write()
    await world.run()
    rewrite_prompt(world)
    world.folder.client.max_calls = world.folder.client.used + 2
    world.folder.concurrency = 1
    summary = await world.run()
    assert world.plan is not None
    assert (world.plan.calls_left.answers, world.plan.calls_left.most, world.judged) == (0, 4, 2)
    assert (summary.exit_code, summary.total.calls_left) == (ExitCode.BUDGET_SPENT, 2)
    assert read_report(world.folder.output).summary.total.calls_left == 2
    world.folder.client.max_calls += summary.total.calls_left
    summary = await world.run()
    assert (summary.exit_code, world.asked, world.judged) == (ExitCode.PASSED, 0, 2)


async def test_the_forecast_knows_which_failed_trials_have_an_answer(world: World) -> None:
    async def failing_judge(request: InvokeRequest) -> str:
        if request.target == "judge":
            raise ProviderFailed("down")
        return await answer(request)

    world.folder.client.answer = failing_judge
    world.graders.pop()
    world.write()
    summary = await world.run()
    assert (summary.total.errors, summary.total.calls_left) == (4, 4)


async def test_a_run_warns_of_workers_that_serve_its_targets_differently(world: World) -> None:
    world.folder.client.different_since = {"bot": -90_000, "another": -1000}
    summary = await world.run()
    assert world.plan is not None
    assert len(list(world.plan.warnings())) == 1
    assert dict(summary.different_seconds) == {"bot": 90.0}
    assert json.loads((world.folder.output / "run.json").read_text())["differentSeconds"] == {"bot": 90.0}
    world.folder.client.different_since.clear()
    assert not (await world.run()).different_seconds
