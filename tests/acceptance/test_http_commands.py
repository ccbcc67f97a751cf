"""The commands of an evaluator and an administrator where there is a gateway and no broker: the same words."""

from __future__ import annotations

import json

import pytest

from support.command_line import CommandLine
from support.evaluations import CAPITALS, totals_of, write_files
from support.running_gateway import RunningGateway


@pytest.fixture(scope="module")
def evaluator(gateway: RunningGateway) -> CommandLine:
    """A shell with a session's token, and without the admin's."""
    return gateway.open_session_shell("judge", 50)


def test_a_broker_goes_before_a_gateway(evaluator: CommandLine) -> None:
    refused = evaluator.run("info", code=2, env={"QUINTAIN_BROKER_URL": "memory://"})
    assert "memory:// lives inside one process" in refused.stderr


def test_with_neither_both_are_named(evaluator: CommandLine) -> None:
    refused = evaluator.run("info", code=2, env={"QUINTAIN_GATEWAY_URL": ""})
    assert "QUINTAIN_BROKER_URL is not set" in refused.stderr
    assert "QUINTAIN_GATEWAY_URL" in refused.stderr


def test_a_run_takes_what_its_users_session_has_and_is_refused_more(gateway: RunningGateway) -> None:
    shell = gateway.open_session_shell("echo", 2)
    evaluation = "dataset: cases.jsonl\ntargets: [echo]\ngraders: [{name: same, builtin: exact}]\n"
    write_files(shell.folder, cases=3, eval_yaml=evaluation)
    words = ("run", "eval.yaml", "--output", "runs/own", "--json")
    refused = shell.run(*words, "--max-calls", "3", code=2)
    assert refused.json["code"] == "config_error"
    totals = shell.run(*words, code=4).json["totals"]
    assert (totals["graded"], totals["calls"]) == (2, 2)


def test_judges_are_calibrated_where_nobody_serves_the_target(gateway: RunningGateway) -> None:
    shell = gateway.open_session_shell("judge", 50)
    evaluation = "dataset: cases.jsonl\ntargets: [nobody]\nlabels: gold.jsonl\ngraders:\n"
    judge = "- {name: judged, builtin: llm-judge, prompt: judge.md, judge_target: judge}\n"
    label = {"id": "case-1", "output": "q1", "pass": True}
    write_files(shell.folder, calibrated_yaml=evaluation + judge, judge_md="Judge.", gold_jsonl=json.dumps(label))
    totals = shell.run("calibrate", "calibrated.yaml", "--json", code=1).json["run"]["totals"]
    # Cases without a label are none of its trials.
    assert (totals["trials"], totals["calls"]) == (1, 1)


def test_a_run_over_http_alone_ends_as_one_over_a_bus(gateway: RunningGateway) -> None:
    shell, output = gateway.shell, gateway.shell.folder / "runs" / "judged"
    judged = "{name: judged, command: [python, judge.py], judge_target: judge, target: {max_calls: 1}}"
    evaluation = f"dataset: cases.jsonl\ntargets: [echo]\ngraders: [{{name: same, builtin: exact}}, {judged}]\n"
    write_files(shell.folder, cases=3, judged_yaml=evaluation, judge_py=(CAPITALS / "judge.py").read_text())
    ended = shell.run("run", "judged.yaml", "--json")
    totals = totals_of(output)
    assert ended.json["totals"] == totals
    assert (totals["graded"], totals["errors"], totals["meanScore"], totals["calls"]) == (3, 0, 0.5, 6)
    session_id = json.loads((output / "run.json").read_text())["sessionId"]
    session = shell.run("session", "show", session_id, "--json").json
    # Nothing is left to do, so its session is closed.
    assert (session["callCount"], session["state"]) == (6, "closed")
