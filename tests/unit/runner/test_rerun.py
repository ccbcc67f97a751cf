"""The same command again: it asks and grades exactly what changed, by the count of a stub in the provider's place."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ReplyExpired
from quintain_runner.engine.run_settings import ErrorPolicy
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import ExitCode
from quintain_runner.results.store import current_rows
from support.evaluations import (
    EXACT,
    JUDGED,
    EvaluationFolder,
    Json,
    cases,
    judged_echo,
    write_evaluation,
    write_script,
)
from support.fake_client import FakeClient

TARGETS = ("bot", "judge")

PASSES = (
    "import helper, json, pathlib; print(json.dumps({'pass': True, 'reason': pathlib.Path('rules.txt').read_text()}))"
)


@dataclass
class World(EvaluationFolder):
    """An evaluation of four cases, a judge and a script, which a test changes and runs again."""

    cases: list[Json] = field(default_factory=lambda: cases(4))
    graders: list[Json] = field(default_factory=list)

    def write(self) -> None:
        write_evaluation(self.path, self.cases, self.graders)


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "prompt.md").write_text("Is it right?")
    (tmp_path / "rules.txt").write_text("first rules")
    (tmp_path / "helper.py").write_text("")
    world = World(tmp_path, FakeClient(judged_echo, targets=TARGETS), graders=[EXACT, JUDGED])
    world.write()
    return world


def add_script(world: World) -> None:
    """Grade with a program as well, which takes a process for each case."""
    command = write_script(world.path, "script.py", PASSES)
    world.graders.append({"name": "script", "command": command, "depends_on": ["rules.txt"]})
    world.write()


#: What may change between two commands; then rows kept, graded again, asked again, new, left out; calls of the target
#: and of the judge, which is not asked again about the same answer.
CHANGES: dict[str, tuple[Callable[[World], object], tuple[int, int, int, int, int], tuple[int, int]]] = {
    "nothing": (lambda w: None, (4, 0, 0, 0, 0), (0, 0)),
    "timeout": (lambda w: w.graders.__setitem__(1, {**JUDGED, "timeout_seconds": 30}), (4, 0, 0, 0, 0), (0, 0)),
    "order": (lambda w: w.cases.reverse(), (4, 0, 0, 0, 0), (0, 0)),
    "target": (lambda w: w.client.fingerprints.update(bot="another"), (0, 0, 4, 0, 0), (4, 0)),
    "judge's model": (lambda w: w.client.fingerprints.update(judge="another"), (0, 4, 0, 0, 0), (0, 4)),
    "question": (lambda w: w.cases[2].update(question="another question"), (3, 0, 1, 0, 0), (1, 1)),
    "settings": (lambda w: w.cases[2].update(settings={"temperature": 0.5}), (3, 0, 1, 0, 0), (1, 1)),
    "system prompt": (lambda w: w.cases[2].update(system_prompt="be brief"), (3, 0, 1, 0, 0), (1, 1)),
    "expected": (lambda w: w.cases[0].update(expected="something else"), (3, 1, 0, 0, 0), (0, 1)),
    "metadata": (lambda w: w.cases[1].update(topic="new"), (3, 1, 0, 0, 0), (0, 0)),
    "a new case": (lambda w: w.cases.append({**w.cases[0], "id": "new"}), (4, 0, 0, 1, 0), (1, 1)),
    "a case less": (lambda w: w.cases.pop(), (3, 0, 0, 0, 1), (0, 0)),
    "grader": (lambda w: w.graders.__setitem__(0, {**EXACT, "ignore_case": True}), (0, 4, 0, 0, 0), (0, 0)),
    "a new grader": (lambda w: w.graders.append({**EXACT, "name": "more"}), (0, 4, 0, 0, 0), (0, 0)),
    "a grader less": (lambda w: w.graders.pop(1), (0, 4, 0, 0, 0), (0, 0)),
    "prompt": (lambda w: (w.path / "prompt.md").write_text("Is it polite?"), (0, 4, 0, 0, 0), (0, 4)),
    "script": (lambda w: write_script(w.path, "script.py", f"{PASSES};"), (0, 4, 0, 0, 0), (0, 0)),
    "dependency": (lambda w: (w.path / "rules.txt").write_text("second rules"), (0, 4, 0, 0, 0), (0, 0)),
    "import": (lambda w: (w.path / "helper.py").write_text("changed = True"), (0, 4, 0, 0, 0), (0, 0)),
}


def change(world: World, what: str) -> None:
    CHANGES[what][0](world)


@pytest.mark.parametrize("what", CHANGES)
async def test_the_same_command_again_does_exactly_what_changed(world: World, what: str) -> None:
    _, planned, calls = CHANGES[what]
    if what in {"script", "dependency", "import"}:
        add_script(world)
    await world.run()
    assert world.called(*TARGETS) == (4, 4)
    change(world, what)
    world.write()
    summary = await world.run()
    plan = world.plan
    assert (plan.kept, plan.graded_again, plan.asked_again, plan.new, plan.left_out) == planned
    assert world.called(*TARGETS) == calls
    assert (summary.total.graded, summary.total.trials) == (len(world.cases), len(world.cases))
    # The calls of rows that have left are in no row.
    in_rows = sum(row.calls for row in world.rows())
    assert summary.total.calls_without_row == len(world.client.requests) - in_rows
    report = read_report(world.output)
    names = [str(grader["name"]) for grader in world.graders]
    assert {row.case_id: list(row.graders) for row in report.rows()} == {str(row["id"]): names for row in world.cases}
    await world.run()
    assert world.asked == []


async def test_a_function_runs_again_when_what_its_module_imports_changes(world: World) -> None:
    (world.path / "neighbour.py").write_text("VERDICT = True")
    code = "import quintain\nfrom neighbour import VERDICT\n@quintain.grader\ndef agrees(output): return VERDICT"
    (world.path / "judges.py").write_text(code)
    world.graders[:] = [{"name": "agrees", "function": "judges:agrees"}]
    world.write()
    await world.run()
    (world.path / "neighbour.py").write_text("VERDICT = False")
    await world.run()
    assert {row.graders["agrees"].passed for row in world.rows()} == {False}
    assert world.called("bot") == (0,)


@pytest.mark.parametrize("what", ["question", "expected", "prompt", "target"])
async def test_a_change_that_is_taken_back_asks_nobody(world: World, what: str) -> None:
    cases_before, fingerprints = [dict(case) for case in world.cases], {**world.client.fingerprints}
    await world.run()
    change(world, what)
    world.write()
    await world.run()
    assert world.asked
    world.cases, world.client.fingerprints = cases_before, fingerprints
    (world.path / "prompt.md").write_text("Is it right?")
    world.write()
    summary = await world.run()
    assert (world.asked, summary.total.graded) == ([], 4)
    assert sum(row.calls for row in world.rows()) <= len(world.client.requests)


async def test_a_plan_is_told_in_words_and_the_record_keeps_what_each_command_did(world: World) -> None:
    await world.run()
    for what in ("expected", "question", "a new case"):
        change(world, what)
    gone = world.cases.pop(1)
    world.write()
    summary = await world.run()
    assert " | ".join(world.plan.lines()) == (
        "1 rows kept · 1 graded again (expected changed) · 1 asked again (question changed) · 1 new · "
        "1 left out (the case is not in the dataset)"
    )
    assert (summary.total.graded, len(world.rows())) == (4, 4)
    # A case that comes back counts again without a call.
    world.cases.append(gone)
    world.write()
    assert ((await world.run()).total.graded, world.asked) == (5, [])
    change(world, "target")
    await world.run()
    record = world.record
    assert [entry["plan"]["new"] for entry in record["history"]] == [4, 1, 1, 0]
    assert {entry["targets"]["bot"] for entry in record["history"][:3]} == {"fingerprint-of-bot"}
    assert record["history"][3]["targets"] == {"bot": "another"}
    assert record["fingerprints"]["targets"] == {"bot": "another", "judge": "fingerprint-of-judge"}


async def test_answers_and_verdicts_of_another_configuration_are_none_and_a_few_park_the_target(world: World) -> None:
    client = world.client
    client.answered_fingerprints["bot"] = "another"
    summary = await world.run(concurrency=64)
    assert (summary.exit_code, *world.called(*TARGETS)) == (ExitCode.ERRORS, 3, 0)
    assert {name: parked.code for name, parked in summary.parked_targets.items()} == {"bot": "target_changed"}
    told = {(row.error.code, row.output, row.calls) for row in world.rows() if row.error}
    assert told == {("target_changed", None, 1)}
    client.answered_fingerprints = {"judge": None}
    await world.run(error_policy=ErrorPolicy(max_errors=0))
    assert {row.error.code for row in world.rows() if row.error} == {"target_changed"}
    client.answered_fingerprints.clear()
    summary = await world.run()
    assert (summary.exit_code, summary.total.graded, *world.called(*TARGETS)) == (ExitCode.PASSED, 4, 0, 4)


async def test_a_target_whose_workers_report_no_fingerprint_is_named(world: World) -> None:
    world.client.fingerprints.clear()
    await world.run()
    await world.run()
    assert list(world.plan.lines()) == [
        "4 rows kept",
        "no worker reports a fingerprint of bot, judge: whether that changed is not known; --fresh asks everything",
    ]
    world.client.fingerprints["bot"] = "known now"
    await world.run()
    assert world.called("bot") == (4,)


async def test_a_run_warns_of_workers_that_serve_its_targets_differently(world: World) -> None:
    world.client.different_since = {"bot": -90_000, "another": -1000}
    summary = await world.run()
    assert len(list(world.plan.warnings())) == 1
    assert dict(summary.different_seconds) == {"bot": 90.0}
    assert world.record["differentSeconds"] == {"bot": 90.0}
    world.client.different_since.clear()
    assert not (await world.run()).different_seconds


# The same command after one that was cut off at any write of the results, or whose answers the ledger has deleted.


@pytest.fixture
def folder(tmp_path: Path) -> EvaluationFolder:
    write_evaluation(tmp_path, cases(3), [EXACT, JUDGED])
    (tmp_path / "prompt.md").write_text("first")
    return EvaluationFolder(tmp_path, FakeClient(judged_echo, targets=("bot", "judge")), concurrency=1)


async def test_a_re_grading_that_is_cut_off_at_any_write_leaves_true_rows(folder: EvaluationFolder) -> None:
    results = folder.output / "results.jsonl"
    await folder.run()
    (folder.path / "prompt.md").write_text("second")

    async def fail_at_the_last(request: InvokeRequest) -> str:
        if request.eval_case_id == "case-2":
            raise RuntimeError("the run ends here")
        return await judged_echo(request)

    folder.client.answer = fail_at_the_last
    with pytest.raises(RuntimeError, match="the run ends here"):
        await folder.run()
    folder.client.answer = judged_echo
    written = results.read_bytes()
    ends = [0, *(at + 1 for at in range(len(written)) if written[at : at + 1] == b"\n")]
    assert len(ends) == 3, "no row of the first run is left when the first is graded again"
    for end in sorted({*ends, *(end - 40 for end in ends[1:])}):
        results.write_bytes(written[:end])
        assert {row.graders["judged"].reason for row in current_rows(folder.output)} <= {"second"}
        asked = len([one for one in folder.client.requests if one.target == "bot"])
        summary = await folder.run()
        assert (summary.total.graded, summary.total.errors) == (3, 0)
        assert {row.graders["judged"].reason for row in read_report(folder.output).rows()} == {"second"}
        assert asked == len([one for one in folder.client.requests if one.target == "bot"]) == 3


@pytest.mark.parametrize(
    ("target", "tries", "calls", "judge_calls", "calls_without_row"), [("bot", 2, 3, 1, 3), ("judge", 1, 3, 2, 0)]
)
async def test_an_answer_that_the_ledger_has_deleted_is_asked_again_and_counted(
    folder: EvaluationFolder, target: str, tries: int, calls: int, judge_calls: int, calls_without_row: int
) -> None:
    await folder.run()
    for name in ("results.jsonl", "answers.sqlite3"):
        (folder.output / name).unlink()
    for request, request_id in zip(folder.client.requests, folder.client.request_ids, strict=True):
        if request.target == target:
            folder.client._outcomes[request_id] = ReplyExpired()
    summary = await folder.run()
    assert (summary.total.graded, summary.total.errors) == (3, 0)
    # Of a new try the verdict is another call too; the first one is in no row.
    assert summary.total.calls_without_row == calls_without_row
    found = [(row.tries, row.calls, row.graders["judged"].calls) for row in folder.rows()]
    assert found == [(tries, calls, judge_calls)] * 3
    asked = len(folder.client.requests)
    await folder.run()
    assert len(folder.client.requests) == asked


async def test_a_file_whose_clock_went_back_is_a_changed_file(folder: EvaluationFolder) -> None:
    prompt = folder.path / "prompt.md"
    await folder.run()
    status = prompt.stat()
    prompt.write_text("third")
    os.utime(prompt, ns=(status.st_atime_ns, status.st_mtime_ns - 3_600_000_000_000))
    await folder.run()
    assert {row.graders["judged"].reason for row in folder.rows()} == {"third"}
