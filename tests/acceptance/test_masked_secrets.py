"""Secrets that a configuration gives to programs, in what these write to stderr, raise, or print wrongly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.command_line import CommandLine
from support.evaluations import rows_of, write_files

#: In an error that is cut it would stand at the edge; and a word of it may stand alone.
SECRET = "battery-staple/of a horse+correct"
ENV = {"KEY": SECRET, "QUINTAIN_LOG_LEVEL": "debug"}

REFERENCE = "${{ KEY }}"

#: Where programs end, and how: each of them tells the secret.
PROGRAM = """
import json, os, sys, urllib.parse
key = os.environ["KEY"]
how = sys.argv[1]
if how == "crash":
    sys.exit("x" * 100 + key + "y" * 270 + " " + key)
elif how == "traceback":
    raise ValueError(key)
elif how == "quoted":
    sys.exit(repr({"url": "https://x/?key=" + urllib.parse.quote(key, safe=""), "key": key.split()[0]}))
elif how == "cut":
    print("x" * 90 + key)
elif how == "error":
    print(json.dumps({"type": "error", "message": key, "error": "x" * 290 + key}))
elif how == "line":
    for _ in range(2):
        print(json.dumps({"type": key, "id": key, "question": "q"}))
elif how == "answer":
    print(json.dumps({"text": {"key": key}, "output": key, "steps": [{"operation": key}]}))
"""

FUNCTIONS = """
import os
import quintain

key = os.environ.pop("KEY")

@quintain.grader
def raises(output):
    raise ValueError("x" * 280 + key)
"""

AGENT = """
import os

key = os.environ.pop("KEY")

def agent(prompt: str) -> str:
    raise ValueError(key)
"""

IMPORTED = (
    AGENT
    + """
raise RuntimeError(key)
"""
)


def commands(provider: str, *ways: str) -> list[str]:
    return [
        f"  {way}: {{provider: command, {provider} command: [{sys.executable}, program.py, {way}], env_from: [KEY]}}"
        for way in ways
    ]


def assert_masked(folder: Path, printed: str) -> None:
    """Nothing that was printed, and no file of the run or its state, has the secret or a word of it."""
    files = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    for text in (printed, *files):
        assert "staple" not in text
        assert "+correct" not in text


def test_no_error_of_a_target_has_a_secret_of_its_program(shell: CommandLine) -> None:
    targets = [
        *commands("", "traceback", "quoted"),
        *commands("output_format: json,", "answer"),
        *commands("protocol: jsonl,", "error", "line"),
        *[line.replace("env_from: [KEY]", f"env: {{KEY: '{REFERENCE}'}}") for line in commands("", "crash")],
        "  raises: {provider: agent, agent: 'agents:agent', env_from: [KEY]}",
    ]
    names = [line.split(":")[0].strip() for line in targets]
    write_files(
        shell.folder,
        cases=1,
        program_py=PROGRAM,
        agents_py=AGENT,
        quintain_yaml="\n".join(["targets:", *targets]),
        eval_yaml=f"dataset: cases.jsonl\ntargets: {names}\ngraders: [{{name: same, builtin: exact}}]\n",
    )
    ran = shell.run("run", "eval.yaml", code=None, env=ENV)
    assert_masked(shell.folder, ran.stdout + ran.stderr)
    rows = rows_of(shell.folder / "runs" / "eval")
    assert {row["target"] for row in rows if "…" in json.dumps(row["error"], ensure_ascii=False)} == {*names} - {
        "answer"
    }  # its errors quote nothing


@pytest.mark.parametrize(
    "grader",
    [
        *(f"command: [python, program.py, {way}]" for way in ("crash", "traceback", "quoted", "cut", "error")),
        "command: [python, program.py, crash], batch: stdin-lines",
        "function: 'graders:raises'",
    ],
)
def test_no_error_of_a_grader_has_a_secret_of_its_program(shell: CommandLine, grader: str) -> None:
    write_files(
        shell.folder,
        cases=1,
        program_py=PROGRAM,
        graders_py=FUNCTIONS,
        quintain_yaml="targets: {bot: {provider: mock}}",
        eval_yaml=f"dataset: cases.jsonl\ntargets: [bot]\ngraders: [{{name: it, {grader}, env_from: [KEY]}}]\n",
    )
    ran = shell.run("run", "eval.yaml", code=None, env=ENV)
    assert_masked(shell.folder, ran.stdout + ran.stderr)
    (row,) = rows_of(shell.folder / "runs" / "eval")
    assert "…" in json.dumps(row["graders"], ensure_ascii=False)


def test_no_check_of_a_program_prints_a_secret_of_it(shell: CommandLine) -> None:
    """What is imported or run before the first case: an agent, a grader's function, a dataset's command."""
    evaluation = "dataset: {dataset}\ntargets: [bot]\ngraders: [{grader}]\n"
    dataset = "{{command: [python, program.py, {way}], env_from: [KEY]}}"
    exact = "{name: same, builtin: exact}"
    write_files(
        shell.folder,
        cases=1,
        program_py=PROGRAM,
        imported_py=IMPORTED,
        quintain_yaml="targets: {bot: {provider: agent, agent: 'imported:agent', env_from: [KEY]}}",
        mock_yaml="targets: {bot: {provider: mock}}",
        agent_yaml=evaluation.format(dataset="cases.jsonl", grader=exact),
        function_yaml=evaluation.format(
            dataset="cases.jsonl", grader="{name: raises, function: 'imported:raises', env_from: [KEY]}"
        ),
        crash_yaml=evaluation.format(dataset=dataset.format(way="crash"), grader=exact),
        rows_yaml=evaluation.format(dataset=dataset.format(way="line"), grader=exact),
    )
    for command, name in (("check", "agent"), ("run", "function"), ("run", "crash"), ("run", "rows")):
        config = {} if name == "agent" else {"QUINTAIN_CONFIG": str(shell.folder / "mock.yaml")}
        ran = shell.run(command, f"{name}.yaml", code=2, env={**ENV, **config})
        assert_masked(shell.folder, ran.stdout + ran.stderr)
        assert "…" in ran.stdout + ran.stderr, ran
