"""The scene that this is about: a run, another model and other graders, and the same command again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.command_line import CommandLine
from support.evaluations import rows_of, write_files
from support.function_model import ModelRequest, function_model

CONFIG = """
targets:
  good: {{provider: openai, model: {model}, base_url: "{url}", api_key: "${{{{ KEY }}}}", judge_target: judge}}
  judge: {{provider: openai, model: judge-model, base_url: "{url}", api_key: "${{{{ KEY }}}}"}}
"""

EVALUATION = """
dataset: cases.jsonl
targets: [good]
graders:
  - {name: polite, function: "graders:polite"}
  - {name: judged, builtin: llm-judge, prompt: prompt.md}
  - {name: same, builtin: exact}
"""

GRADER = """
import quintain

@quintain.grader
def polite(output):
    return {score}
"""


@dataclass
class Models:
    """The judge's verdict is in its instructions; every other model answers with its own name."""

    url: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, asked: ModelRequest) -> str:
        self.asked.append(asked.model)
        verdict = '{"pass": true}' if "lenient" in asked.system else '{"pass": false}'
        return verdict if asked.model == "judge-model" else asked.model


@pytest.fixture
def models() -> Iterator[Models]:
    """The provider of all models."""
    models = Models()
    with function_model(models.answer) as models.url:
        yield models


def asked(
    models: Models,
    shell: CommandLine,
    *words: str,
    key: str = "k",
    command: tuple[str, ...] = ("run", "eval.yaml"),
) -> tuple[Counter[str], str]:
    """What one command asked of the provider, by model, and what it printed on stderr."""
    models.asked.clear()
    ended = shell.run(*command, *words, "--graders", "1", env={"KEY": key})
    return Counter(models.asked), ended.stderr


def write(folder: Path, url: str, *, model: str, score: float, prompt: str) -> None:
    write_files(
        folder,
        cases=5,
        quintain_yaml=CONFIG.format(url=url, model=model),
        eval_yaml=EVALUATION,
        graders_py=GRADER.format(score=score),
        prompt_md=prompt,
    )


def test_a_changed_model_and_changed_graders_give_new_answers_and_new_scores(
    shell: CommandLine, models: Models
) -> None:
    output = shell.folder / "runs" / "eval"
    write(shell.folder, models.url, model="model-a", score=1.0, prompt="be lenient")
    first, _ = asked(models, shell)
    assert first == {"model-a": 5, "judge-model": 5}
    write(shell.folder, models.url, model="model-b", score=0.25, prompt="be strict")
    second, said = asked(models, shell)
    assert second == {"model-b": 5, "judge-model": 5}
    assert "plan     0 rows kept · 5 asked again (target good: model model-a → model-b)" in said
    for row in rows_of(output):
        graders = row["graders"]
        assert row["output"] == "model-b"
        assert [graders[name]["score"] for name in ("polite", "judged", "same")] == [0.25, 0.0, 0.0]
    assert asked(models, shell, key="another key")[0] == {}
    regraded, said = asked(models, shell, command=("rescore", "runs/eval"))
    assert regraded == {"judge-model": 5}
    assert "calls    0 to 5" in said
    one, _ = asked(models, shell, "--case", "case-2", "--target", "good", "--no-content", "--fresh")
    assert one == {"model-b": 1, "judge-model": 1}
    assert [row["output"] for row in rows_of(output)] == [None]
    fresh, _ = asked(models, shell, "--fresh")
    assert fresh == {"model-b": 5, "judge-model": 5}
    assert (shell.folder / "runs" / "eval.previous-2" / "results.jsonl").is_file()
    history = json.loads((output / "run.json").read_text())["history"]
    assert [entry["plan"]["new"] for entry in history] == [5]


def test_a_fresh_run_that_is_refused_leaves_the_earlier_results_where_they_are(shell: CommandLine) -> None:
    command = "dataset: {command: [python, cases.py]}\ntargets: [bot]\ngraders: [{name: same, builtin: exact}]\n"
    row = json.dumps({"id": "c1", "question": "hi", "expected": "hi"})
    write_files(
        shell.folder,
        quintain_yaml="targets: {bot: {provider: mock}}\n",
        eval_yaml=command,
        cases_py=f"print({row!r})\n",
    )
    shell.run("run", "eval.yaml")
    results = shell.folder / "runs" / "eval"
    before = {path.name: path.read_bytes() for path in results.iterdir() if path.is_file()}
    write_files(shell.folder, cases_py="print('not a case')\n")
    shell.run("run", "eval.yaml", "--fresh", code=2)
    assert {path.name: path.read_bytes() for path in results.iterdir() if path.is_file()} == before
    assert [path.name for path in results.parent.iterdir()] == ["eval"]
