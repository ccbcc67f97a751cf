"""AgentV's own command, unchanged: its code grader calls our gateway by the variables that it inherits.

In AgentV 4.42.4 the command never starts its own proxy, so that a grader with a ``target`` block finds none; a
grader without one finds ours, in the environment that AgentV was started in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandLine
from support.running_gateway import RunningGateway, run_gateway, run_program

GRADER = Path(__file__).parents[2] / "examples" / "clients" / "grader.mjs"

#: AgentV's target gives the answer; ours are the judges.
CONFIG = "targets: {judge: {provider: mock, response: 'Yes, it does.'}, stern: {provider: mock, response: 'No.'}}\n"
TARGETS = 'targets: [{name: candidate, provider: mock, response: "The capital of France is Paris."}]\n'
EVALUATION = """
description: two cases, graded through the gateway
execution: {target: candidate}
tests:
  - {id: france, criteria: it names Paris, input: "What is the capital of France?", assertions: &graders
      [{name: judged, type: code-grader, command: [node, grader.mjs]}]}
  - {id: again, criteria: it names Paris, input: "Once more?", assertions: *graders}
"""

pytestmark = pytest.mark.timeout(700)


@pytest.fixture(scope="module")
def judge_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with two judges."""
    with run_gateway(tmp_path_factory.mktemp("judges"), CONFIG) as door:
        yield door


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """AgentV's own files: its target, its evaluation, a grader."""
    (tmp_path / ".agentv").mkdir()
    (tmp_path / ".agentv" / "targets.yaml").write_text(TARGETS)
    (tmp_path / "it.eval.yaml").write_text(EVALUATION)
    shutil.copy(GRADER, tmp_path)
    return tmp_path


def evaluate(agentv: Path, evaluator: CommandLine, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """AgentV's exit code and its rows, told where we are by the snippet."""
    variables = evaluator.run("snippet", "agentv", "--json").json["variables"]
    assert isinstance(variables, dict)
    ours = {name: value for name, value in evaluator.env.items() if not name.startswith("QUINTAIN_")}
    env = {**ours, **variables, "HOME": str(folder / "home")}
    ended = run_program(
        [str(agentv), "eval", "run", "it.eval.yaml", "--output", "out", "--threshold", "0.8"], env, folder
    )
    rows = (folder / "out" / "index.jsonl").read_text().splitlines() if (folder / "out").exists() else []
    assert rows, ended
    return ended.code, [json.loads(row) for row in rows]


@pytest.mark.parametrize(("judge", "score"), [("judge", 1), ("stern", 0)])
def test_agentvs_command_grades_through_our_gateway(
    judge_gateway: RunningGateway, agentv: Path, folder: Path, judge: str, score: int
) -> None:
    evaluator = judge_gateway.open_session_shell(judge, 2)
    code, rows = evaluate(agentv, evaluator, folder)
    assert sorted((row["test_id"], row["score"]) for row in rows) == [("again", score), ("france", score)]
    said = "Yes, it does." if score else "No."
    for row in rows:
        (judged,) = row["scores"]
        assert judged["assertions"] == [{"text": f"the judge said {said}", "passed": bool(score)}]
    assert (code == 0) == bool(score)
    told = evaluator.run("info", "--json").json
    assert (told["callCount"], told["maxCalls"]) == (2, 2)
