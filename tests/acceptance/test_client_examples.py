"""The examples in examples/clients, run as a user runs them: other people's clients, told by `quintain snippet`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.command_line import CommandLine, CommandResult
from support.evaluations import write_files
from support.running_gateway import RunningGateway, run_program

EXAMPLES = Path(__file__).parents[2] / "examples" / "clients"

#: A judge that answers the grader's question about the candidate's answer.
CONFIG = """
targets:
  candidate: {provider: mock, response: "The capital of France is Paris."}
  judge: {provider: mock, response: "Yes."}
"""


def snippet_environment(evaluator: CommandLine, tool: str, target: str) -> dict[str, str]:
    """The evaluator's environment with what the snippet adds, and without what is ours."""
    variables = evaluator.run("snippet", tool, "--target", target, "--json").json["variables"]
    assert isinstance(variables, dict)
    ours = {name: value for name, value in evaluator.env.items() if not name.startswith("QUINTAIN_")}
    return {**ours, **variables}


def test_curl_is_enough(gateway: RunningGateway) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    evaluator = gateway.open_session_shell("judge", 1)
    script = str(EXAMPLES / "curl.sh")
    answered = run_program([script, "What is the capital of France?"], evaluator.env, evaluator.folder)
    assert (answered.code, json.loads(answered.stdout)["rawText"]) == (0, "Paris"), answered
    refused = run_program([script, "And of Spain?"], evaluator.env, evaluator.folder)
    assert refused.code == 22
    assert json.loads(refused.stdout)["code"] == "budget_exhausted"


def grade(node: str, env: dict[str, str], folder: Path, answer: str) -> CommandResult:
    case = {"criteria": "it names Paris", "output": answer}
    return run_program([node, str(EXAMPLES / "grader.mjs")], env, folder, stdin=json.dumps(case))


@pytest.mark.timeout(700)
def test_a_grader_with_nothing_but_fetch_gets_its_verdict(gateway: RunningGateway, node: str) -> None:
    evaluator = gateway.open_session_shell("judge", 1)
    env = snippet_environment(evaluator, "agentv", "judge")
    verdict = grade(node, env, evaluator.folder, "Paris.")
    assert verdict.code == 0, verdict
    assert json.loads(verdict.stdout) == {
        "score": 0,
        "assertions": [{"text": "the judge said Paris", "passed": False}],
    }
    spent = grade(node, env, evaluator.folder, "Paris.")
    assert spent.code != 0
    assert "Max calls exceeded (limit: 1)" in spent.stderr


@pytest.mark.timeout(700)
def test_quintain_run_grades_with_it(shell: CommandLine, node: str) -> None:
    shutil.copy(EXAMPLES / "grader.mjs", shell.folder)
    evaluation = (
        "dataset: cases.jsonl\ntargets: [candidate]\n"
        f"graders: [{{name: judged, command: [{node}, grader.mjs], judge_target: judge}}]\n"
    )
    write_files(shell.folder, cases=2, quintain_yaml=CONFIG, eval_yaml=evaluation)
    told = shell.run("run", "eval.yaml", "--json").json["totals"]
    assert isinstance(told, dict)
    assert (told["graded"], told["errors"], told["meanScore"], told["calls"]) == (2, 0, 1.0, 4), told
