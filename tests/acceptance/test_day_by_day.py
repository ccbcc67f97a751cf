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
