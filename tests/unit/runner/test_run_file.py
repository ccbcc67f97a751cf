"""run.json: of what the rows are the results, and what the folder refuses to mix."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from quintain.contracts.invoke import TokenUsage
from quintain.errors import ConfigError
from quintain_runner.report.run_file import EvaluationIdentity, open_run, revision_of, write_run
from quintain_runner.report.summary import ColumnTotals, RunSummary, RunTotals
from quintain_runner.spec.evaluation import load_evaluation
from support.command_line import clean_environment
from support.evaluations import EXACT, cases, write_evaluation

COUNTS: dict[str, object] = {
    "cases": 2, "trials": 2, "graded": 1, "passed": 1, "errors": 1, "mean_score": 1.0,
    "token_usage": TokenUsage(input=5, output=6),
}  # fmt: skip
BOT = ColumnTotals.model_validate({**COUNTS, "calls": 3})
SUMMARY = RunSummary(
    total=RunTotals.model_validate({**COUNTS, "calls": 4, "max_calls": 9}),
    per_target={"bot": BOT},
    threshold=0.5,
    is_budget_spent=False,
    results=Path("out/results.jsonl"),
)


def identity(folder: Path, *, dataset: str = "d" * 64, **settings: object) -> EvaluationIdentity:
    graders = settings.pop("graders", [EXACT])
    return EvaluationIdentity.of(load_evaluation(write_evaluation(folder, cases(1), graders, **settings)), dataset)


def write(folder: Path, *, ended: bool = True, **settings: object) -> dict[str, object]:
    identity(folder, **settings)
    record = open_run(folder, load_evaluation(folder / "eval.yaml"), ["bot"], "d" * 64)
    write_run(folder, record.with_summary(SUMMARY), ended=ended)
    return json.loads((folder / "run.json").read_text())


def test_it_holds_the_configuration_the_versions_and_the_totals(tmp_path: Path) -> None:
    content = write(tmp_path, threshold=0.5)
    evaluation = load_evaluation(tmp_path / "eval.yaml")
    assert content["configuration"] == {
        "evaluation": str(tmp_path / "eval.yaml"),
        "evaluationSha256": evaluation.sha256,
        "content": evaluation.text,
        "identity": identity(tmp_path, threshold=0.5).model_dump(),
        "targets": ["bot"],
        "prompts": [],
        "repeats": 1,
        "reduce": {"graders": {}},
        "threshold": 0.5,
        "maxCalls": 9,
    }  # fmt: skip
    counts = {"cases": 2, "trials": 2, "graded": 1, "passed": 1, "errors": 1, "inDoubt": 0, "waiting": 0}
    spent = {"meanScore": 1.0, "calls": 4, "maxCalls": 9, "tokenUsage": {"input": 5, "output": 6}}
    assert content["totals"] == counts | spent
    assert content["targets"] == {"bot": json.loads(BOT.to_wire())}
    assert content["exitCode"] == 1
    assert set(content["versions"]) == {"quintain", "python", "platform"}
    assert content.keys() >= {"revision", "sessionId", "calls", "cards", "statistics", "bill"}


def test_what_a_person_changes_to_get_a_run_through_is_no_other_evaluation(tmp_path: Path) -> None:
    graders = [{"name": "j", "command": ["x"], "timeout_seconds": 1, "target": {"max_calls": 1}}]
    again = [{"name": "j", "command": ["x"], "timeout_seconds": 9, "target": {"max_calls": 9}}]
    assert identity(tmp_path, graders=graders) == identity(tmp_path, graders=again, max_calls=5, repeats=3)


def test_rows_that_belong_to_nobody_knows_what_are_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").touch()
    write(tmp_path)
    (tmp_path / "run.json").unlink()
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"holds results but no run\.json"):
        write(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json: cannot be read"):
        write(tmp_path)


def test_a_key_that_somebody_wrote_into_the_evaluation_does_not_go_into_the_record(tmp_path: Path) -> None:
    key = "sk-" + "a1" * 20
    graders = [{"name": "j", "command": ["judge", "--key", key]}]
    write(tmp_path, graders=graders)
    assert key in (tmp_path / "eval.yaml").read_text()
    assert key not in (tmp_path / "run.json").read_text()


def git(folder: Path, *words: str) -> str:
    env = {**clean_environment(), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *who, *words], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_revision_is_the_commit_and_whether_tracked_files_differ_and_none_before_the_first(tmp_path: Path) -> None:
    assert revision_of(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert revision_of(tmp_path) is None
    (tmp_path / "eval.yaml").write_text("one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "results.jsonl").write_text("nobody tracks this\n")
    found = revision_of(tmp_path)
    assert found.model_dump() == {"commit": commit, "dirty": False}
    (tmp_path / "eval.yaml").write_text("two\n")
    changed = revision_of(tmp_path)
    assert (changed.commit, changed.dirty) == (commit, True)
