"""The GitHub action: its steps, run by bash as a runner does, with GitHub's own program as a stub."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import CommandLine, command_line
from support.evaluations import write_files

ACTION = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "github-action" / "action.yml").read_text())

#: Asked for the last run of the default branch it names one if there is any, whose results it copies; it finds the
#: comment that it wrote before.
GH = """#!/bin/sh
echo "$@" >> calls
case "$1 $2" in
  "run list") [ -d main-results ] && echo 77 || true ;;
  "run download") cp -r main-results quintain-baseline ;;
  "pr comment") cp comment.md commented.md ;;
  "api --method") cp comment.md commented.md ;;
  "api "*) [ -f commented.md ] && echo 9 || true ;;
esac
"""

CASES = "".join(json.dumps({"id": f"c{number}", "question": "yes", "expected": "yes"}) + "\n" for number in range(20))
CONFIG = "targets: {it: {provider: mock, response: RESPONSE}}\n"
EVALUATION = (
    "dataset: cases.jsonl\ntargets: [it]\nmax_calls: 50\nthreshold: 0.5\ngraders: [{name: e, builtin: exact}]\n"
)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    """A checkout with an evaluation whose target answers rightly."""
    with command_line(tmp_path) as shell:
        write_files(shell.folder, quintain_yaml=CONFIG.replace("RESPONSE", "yes"), eval_yaml=EVALUATION)
        (shell.folder / "cases.jsonl").write_text(CASES)
        programs = shell.folder / "programs"
        programs.mkdir()
        for name, text in {"gh": GH, "quintain": f'#!/bin/sh\nexec {sys.executable} -m quintain_cli "$@"\n'}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        yield shell.with_environment({"PATH": f"{programs}:{shell.env['PATH']}"})


def run_action(shell: CommandLine, event: str, **inputs: str) -> tuple[int, str]:
    """Run the steps with a command, as a runner does; the exit code of the first that fails, and the summary."""
    given = {name: str(each["default"]) for name, each in ACTION["inputs"].items()} | inputs
    values = {
        "github.token": "a-token", "github.repository": "me/it", "github.event_name": event,
        "github.event.pull_request.number": "5", "github.event.repository.default_branch": "main",
        **{f"inputs.{name}": value for name, value in given.items()},
    }  # fmt: skip
    output, summary = shell.folder / "output", shell.folder / "summary"
    summary.touch()
    for step in ACTION["runs"]["steps"]:
        if "run" not in step or step["name"] == "Install" or not is_wanted(step, values):
            continue
        env = {name: re.sub(r"\$\{\{ (\S+) \}\}", lambda found: values.get(found[1], ""), value)
               for name, value in step.get("env", {}).items()}  # fmt: skip
        output.write_text("")
        own = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_WORKFLOW": "evals"}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=shell.folder, env={**shell.env, **own, **env}, check=False)
        if done.returncode:
            return done.returncode, summary.read_text()
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            values[f"steps.{step['id']}.outputs.{name}"] = value
    return 0, summary.read_text()


def is_wanted(step: dict[str, Any], values: dict[str, str]) -> bool:
    """Whether a step's condition holds: equalities that are joined by ``&&``."""
    parts = [part.split(" == ") for part in step["if"].split(" && ")] if "if" in step else []
    return all(values[name] == value.strip("'") for name, value in parts)


def test_a_push_keeps_its_results_and_asks_github_nothing(shell: CommandLine) -> None:
    code, summary = run_action(shell, "push")
    assert (code, (shell.folder / "calls").exists()) == (0, False)
    assert {path.name for path in (shell.folder / "quintain-results").iterdir()} == {"run", "table.md", "junit.xml"}
    assert "20/20" in summary


def test_a_pull_request_is_commented_and_fails_where_a_target_became_worse(shell: CommandLine) -> None:
    code, _ = run_action(shell, "pull_request")
    assert code == 0
    assert "no results to compare with" in (shell.folder / "commented.md").read_text()
    assert "pr comment 5 --body-file comment.md" in (shell.folder / "calls").read_text()
    shutil.move(shell.folder / "quintain-results", shell.folder / "main-results")
    code, _ = run_action(shell, "pull_request", evaluation="eval.yaml")
    assert code == 0
    # Now every answer is wrong.
    shutil.rmtree(shell.folder / "quintain-results")
    shutil.rmtree(shell.folder / "quintain-baseline")
    (shell.folder / "quintain.yaml").write_text(CONFIG.replace("RESPONSE", "no"))
    evaluation = shell.folder / "eval.yaml"
    evaluation.write_text(EVALUATION.replace("threshold: 0.5\n", ""))
    code, summary = run_action(shell, "pull_request")
    comment = (shell.folder / "commented.md").read_text()
    assert (code, "\n    " in comment, "Compared with main" in summary) == (3, True, True)
    calls = (shell.folder / "calls").read_text()
    assert "api --method PATCH repos/me/it/issues/comments/9 --field body=@comment.md" in calls
    assert calls.count("pr comment") == 1


def test_a_run_that_misses_its_threshold_fails_with_its_exit_code(shell: CommandLine) -> None:
    (shell.folder / "quintain.yaml").write_text(CONFIG.replace("RESPONSE", "no"))
    code, _ = run_action(shell, "push", arguments="--limit 3 --concurrency 2")
    assert code == 3
