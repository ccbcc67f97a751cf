"""From an evaluation file's graders to graders that grade: functions in processes of their own, and every mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.engine.trial import run_trial
from quintain_runner.graders.factory import open_graders
from quintain_runner.results.row import Row
from quintain_runner.spec.evaluation import Evaluation, load_evaluation
from support.fake_client import FakeClient
from support.grading_context import grading_context, trial_of

FUNCTIONS = """
import sys
import quintain
from neighbour import word

@quintain.grader
def polite(output):
    print("what it prints is no verdict")
    return word in output

@quintain.grader
async def third(case, output, config):
    return config["share"] if case.metadata["level"] == 2 else 0

@quintain.grader
def whole(given: quintain.GraderInput):
    return {"score": 0.25, "reason": f"{given.target} {given.repeat} {given.token_usage.input} {given.duration_ms}"}

@quintain.grader
def reads(output):
    return {"pass": True, "reason": repr(sys.stdin.read())}

@quintain.grader
def raises(output):
    raise ValueError("no rubric of qtn_ses_%s_%s_%s" % ("a" * 12, "b" * 43, "c" * 6))

@quintain.grader
def says_nothing(output):
    pass

@quintain.grader
def asks(output, session):
    return True

def no_grader(output):
    return True
"""

CASE = Case(id="1", question="yes please", metadata={"level": 2})


def evaluation(folder: Path, *graders: dict[str, object]) -> Evaluation:
    (folder / "judges.py").write_text(FUNCTIONS)
    (folder / "neighbour.py").write_text('word = "please"')
    # Named as a module of Python's own: it must not be in the way of one.
    (folder / "random.py").write_text("raise SystemExit('not this one')")
    path = folder / "eval.yaml"
    named = [{"name": f"g{number}", **grader} for number, grader in enumerate(graders)]
    path.write_text(json.dumps({"dataset": "cases.jsonl", "graders": named}))
    return load_evaluation(path)


async def graded(folder: Path, client: FakeClient, *graders: dict[str, object]) -> Row:
    async with open_graders(evaluation(folder, *graders), {}) as ready:
        outcome = await run_trial(trial_of(CASE), grading_context(client, *ready))
    return outcome.row


async def test_a_function_grades_and_what_it_returns_is_a_verdict(tmp_path: Path) -> None:
    client = FakeClient()
    row = await graded(
        tmp_path,
        client,
        {"function": "judges:polite"},
        {"function": "judges:third", "config": {"share": 0.75}},
        {"function": "judges:whole"},
        {"function": "judges:reads"},
    )
    grades = list(row.graders.values())
    assert [grade.error for grade in grades] == [None] * 4
    assert [grade.score for grade in grades] == [1.0, 0.75, 0.25, 1.0]
    assert grades[2].reason == "bot 1 10 5.0"
    assert grades[3].reason == "''"
    assert client.children == {}, "who asks for no session is given none"


async def test_a_function_that_asks_for_a_session_has_a_narrow_one_of_its_own(tmp_path: Path) -> None:
    client = FakeClient(max_calls=20)
    row = await graded(
        tmp_path, client, {"function": "judges:asks", "judge_target": "sage", "target": {"max_calls": 3}}
    )
    (child,) = client.children.values()
    assert (child.request.default_target, child.request.max_calls, child.request.label) == ("sage", 3, "eval/1/g0")
    # Nobody is at this door: that is its error, and no score.
    assert "GatewayUnavailable" in (row.graders["g0"].error or "")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("raises", r"It reported an error: ValueError: no rubric of qtn_ses_\S+ \(judges.py, line \d+\)"),
        (
            "says_nothing",
            "It reported an error: TypeError: it returned NoneType; return True or False, a score from 0 to 1, or",
        ),
    ],
)
async def test_a_function_that_fails_is_an_error_of_its_case(tmp_path: Path, function: str, error: str) -> None:
    row = await graded(tmp_path, FakeClient(), {"function": f"judges:{function}"})
    said = row.graders["g0"].error or ""
    assert re.search(error, said), said
    assert "b" * 43 not in said
    assert row.score is None


async def test_a_pooled_program_reads_lines_with_its_session_connection(tmp_path: Path) -> None:
    source = """
import json, os, sys
for line in sys.stdin:
    given = json.loads(line)
    said = [given["output"], given["config"], given["env"]["QUINTAIN_SESSION_TOKEN"], os.path.basename(os.getcwd())]
    print(json.dumps({"score": 1, "reason": json.dumps(said)}), flush=True)
"""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "lines.py").write_text(source)
    grader: dict[str, object] = {"command": ["python", "lines.py"], "batch": "stdin-lines", "cwd": "below"}
    row = await graded(tmp_path, FakeClient(), {**grader, "config": {"a": 1}})
    assert row.graders["g0"].reason == '["yes please", {"a": 1}, "token-1", "below"]'


JUDGE = {"builtin": "llm-judge"}

#: Graders that cannot be had, and why.
REFUSED: list[tuple[dict[str, object], str]] = [
    ({"function": "missing:polite"}, "missing cannot be imported: ModuleNotFoundError"),
    ({"function": "judges:missing"}, "judges has no function missing"),
    ({"function": "judges:no_grader"}, "judges:no_grader is not a grader; write @quintain.grader above it"),
    ({"function": "broken:any"}, "broken cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
    ({"function": "wrong:wrong"}, "takes 'outptu', which no grader is given; did you mean 'output'?"),
    ({**JUDGE, "prompt": "nowhere.md"}, "nowhere.md: cannot be read"),
    ({**JUDGE, "prompt": "empty.md"}, "empty.md: it is empty"),
    ({"builtin": "json-schema", "schema": "nowhere.json"}, "nowhere.json: cannot be read"),
    ({"command": ["true"], "cwd": "nowhere"}, "cwd: there is no folder"),
    ({"command": ["python", "nowhere.py"], "batch": "stdin-lines"}, "its command: there is no file"),
]


async def test_every_grader_that_cannot_be_had_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "empty.md").write_text("\n")
    (tmp_path / "broken.py").write_text("import no_such_module")
    (tmp_path / "wrong.py").write_text("import quintain\n@quintain.grader\ndef wrong(outptu): ...")
    with pytest.raises(ConfigError) as error:
        async with open_graders(evaluation(tmp_path, *(grader for grader, _ in REFUSED)), {}):
            pass
    told = error.value.message.splitlines()
    for number, (line, (_, sentence)) in enumerate(zip(told, REFUSED, strict=True)):
        assert line.startswith(f"{tmp_path / 'eval.yaml'}: graders[{number}] (g{number}): "), line
        assert sentence in line, line
