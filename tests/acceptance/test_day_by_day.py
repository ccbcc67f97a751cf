"""What is given at the command line in place of the files: which cases, which model, which values."""

from __future__ import annotations

import json

from support.command_line import CommandLine
from support.evaluations import rows_of, write_files
from support.function_model import ModelRequest, function_model

CONFIG = """
targets:
  bot: {{provider: openai, model: model-a, base_url: "{url}", api_key: "${{{{ KEY }}}}"}}
"""

EVALUATION = """
dataset: cases.jsonl
graders: [{name: same, builtin: exact, value: model-b}]
"""


def test_cases_that_failed_are_tried_with_another_model_and_the_record_says_so(shell: CommandLine) -> None:
    def answer(asked: ModelRequest) -> str:
        return asked.model

    with function_model(answer) as url:
        write_files(shell.folder, cases=6, quintain_yaml=CONFIG.format(url=url), eval_yaml=EVALUATION)
        env = {"KEY": "k"}
        shell.run("run", "eval.yaml", "--where", "id=case-1", "--where", "id=case-2", env=env)
        words = ("run", "eval.yaml", "--output", "two", "--failing", "--of", "runs/eval", "--sample", "1")
        tried = shell.run(*words, "--model", "model-b", "--set", "threshold=1", env=env)
    assert tried.code == 0
    assert "select   1 of 6 cases: --failing leaves out 4, --sample leaves out 1" in tried.stderr
    assert "set      --model=model-b" in tried.stderr
    assert [row["output"] for row in rows_of(shell.folder / "two")] == ["model-b"]
    record = json.loads((shell.folder / "two" / "run.json").read_text())
    assert record["history"][0]["overrides"] == ["--set threshold=1", "--model=model-b"]
    assert record["history"][0]["selection"]["leftOut"] == {"--failing": 4, "--sample": 1}
    refused = shell.run("check", "eval.yaml", "--model", "model-b", "--set", "treshold=1", code=2, env=env)
    assert "did you mean 'threshold'" in refused.stdout


def test_one_prompt_and_one_grader_are_tried_alone(shell: CommandLine) -> None:
    files = {
        "quintain_yaml": "targets:\n  echo: {provider: mock}\n",
        "eval_yaml": """
dataset: cases.jsonl
prompts: [{name: plain, user: "{{ question }}"}, {name: long, user: "{{ question }} please"}]
graders: [{name: same, builtin: exact}, {name: within, builtin: contains}]
""",
    }
    write_files(shell.folder, **files)
    words = ("eval.yaml", "--prompt", "long", "--grader", "within")
    checked = json.loads(shell.run("check", *words, "--json").stdout)
    assert (checked["prompts"], [grader["name"] for grader in checked["graders"]]) == (["long"], ["within"])
    tried = shell.run("run", *words)
    assert "select   --prompt leaves out plain" in tried.stderr
    assert "select   --grader leaves out same" in tried.stderr
    rows = rows_of(shell.folder / "runs" / "eval")
    assert [(row["prompt"], row["output"], row["score"]) for row in rows] == [
        ("long", f"q{number} please", 1.0) for number in (1, 2, 3)
    ]
    record = json.loads((shell.folder / "runs" / "eval" / "run.json").read_text())
    assert record["history"][0]["selection"] == {"prompts": ["long"], "graders": ["within"]}
    counts = json.loads(shell.run("run", "eval.yaml", "--json").stdout)
    assert (counts["totals"]["graded"], counts["totals"]["calls"]) == (6, 6)
    for option, name, nearest in (("--prompt", "lon", "'long'"), ("--grader", "sane", "'same'")):
        assert f"did you mean {nearest}" in shell.run("run", "eval.yaml", option, name, code=2).stderr
