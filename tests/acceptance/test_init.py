"""``quintain init``: a new evaluation that runs at once, and one of another tool carried over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from quintain_cli.commands.init import missing_needs, new_project
from support.command_line import CommandLine, run_at_terminal


def rows_of(shell: CommandLine, folder: str) -> list[dict[str, object]]:
    lines = (shell.folder / folder / "runs" / "eval" / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_three_commands_lead_to_a_graded_table_without_a_key(shell: CommandLine) -> None:
    assert shell.run("init").stdout.splitlines()[-1].endswith("quintain run eval.yaml")
    assert shell.run("check", "eval.yaml").code == 0
    totals = shell.run("run", "eval.yaml", "--json").json["totals"]
    assert (totals["cases"], totals["graded"], totals["errors"]) == (5, 5, 0)


def test_an_agent_is_graded_by_its_answer_and_by_what_it_did(shell: CommandLine) -> None:
    shell.run("init", "new", "--provider", "agent")
    ran = shell.run("run", "new/eval.yaml", "--output", "new/runs/eval", "--json").json
    assert (ran["totals"]["graded"], ran["totals"]["passed"]) == (5, 5)
    assert {row["graders"]["looked-up"]["score"] for row in rows_of(shell, "new")} == {1.0}


def test_nothing_is_overwritten_and_nothing_is_written_beside_it(shell: CommandLine) -> None:
    (shell.folder / "eval.yaml").write_text("mine")
    refused = shell.run("init", "--json", code=2)
    assert (refused.code, refused.json["code"]) == (2, "config_error")
    assert [path.name for path in shell.folder.iterdir()] == ["eval.yaml"]


@pytest.mark.parametrize(
    ("provider", "key"), [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY"), ("mock", "OTHER_KEY")]
)
def test_the_provider_whose_key_is_set_is_suggested(shell: CommandLine, provider: str, key: str) -> None:
    shown = shell.run("init", "new", "--dry-run", "--json", env={key: "a key"})
    files = shown.json["files"]
    assert f"provider: {provider}" in files["quintain.yaml"]
    assert "a key" not in shown.stdout
    assert not (shell.folder / "new").exists()


@pytest.mark.parametrize(("provider", "key"), [("mock", ""), ("ollama", ""), ("anthropic", "ANTHROPIC_API_KEY")])
def test_a_missing_key_is_named(provider: str, key: str) -> None:
    configuration = new_project(provider, "contains", None)["quintain.yaml"]
    needs = missing_needs(configuration, {})
    assert len(needs) == bool(key)
    assert all(key in need for need in needs)
    assert missing_needs(configuration, {"ANTHROPIC_API_KEY": "a key"}) == []


def test_on_a_terminal_three_questions_are_asked(shell: CommandLine) -> None:
    (shell.folder / "own.jsonl").write_text('{"id": "a", "question": "x", "expected": "x"}\n')
    ended = run_at_terminal(("init",), shell.env, shell.folder, "ollama\nown.jsonl\nexact\n")
    assert ended.code == 0, ended
    assert [name for name in ("provider", "dataset", "grader") if f"Which {name}" in ended.stdout] == [
        "provider", "dataset", "grader",
    ]  # fmt: skip
    evaluation = yaml.safe_load((shell.folder / "eval.yaml").read_text())
    assert (evaluation["dataset"], evaluation["graders"][0]["builtin"]) == ("own.jsonl", "exact")
    assert "base_url" in yaml.safe_load((shell.folder / "quintain.yaml").read_text())["targets"]["model"]


@pytest.mark.parametrize(
    "options", [("--provider", "none"), ("--grader", "none"), ("--dataset", "none.jsonl"), ("--from", "none.yaml")]
)
def test_what_does_not_exist_is_refused(shell: CommandLine, options: tuple[str, str]) -> None:
    assert shell.run("init", *options, code=2).code == 2
    assert list(shell.folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(shell: CommandLine) -> None:
    (shell.folder / "file").touch()
    shell.run("init", "file/new", code=2)
    assert [path.name for path in shell.folder.iterdir()] == ["file"]


def test_a_file_of_neither_tool_is_refused(shell: CommandLine, tmp_path: Path) -> None:
    for text in ("a: 1", "[]", "tests: []", "prompts: []", "tests: {a: 1}", "a: [", "a: 1\na: 2"):
        (tmp_path / "other.yaml").write_text(text)
        refused = shell.run("init", "--from", str(tmp_path / "other.yaml"), "--json", code=2)
        assert (refused.code, refused.json["code"]) == (2, "config_error"), text
