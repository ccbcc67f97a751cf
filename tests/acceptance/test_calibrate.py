"""``quintain calibrate``: judges against labels, of a file and of a labeled run, without a call to a target."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quintain_runner.results.labels import Chosen, Note, NoteKey, append_note
from quintain_runner.results.row import Row
from support.command_line import CommandLine
from support.evaluations import rows_of, write_files
from support.function_model import ModelRequest, function_model

CONFIG = """
targets:
  bot: {{provider: openai, model: bot, base_url: "{url}"}}
  judge: {{provider: openai, model: judge, base_url: "{url}"}}
"""


@dataclass
class Models:
    """Its bot answers "right" or "wrong" by the case's number; its strict judge fails what is wrong, the lenient one
    nothing; in an outage neither says anything of what is wrong.
    """

    url: str = ""
    outage: bool = False
    answered: list[str] = field(default_factory=list)

    @property
    def calls(self) -> Counter[str]:
        return Counter(self.answered)

    def answer(self, asked: ModelRequest) -> str:
        if asked.model == "bot":
            self.answered.append("bot")
            return "wrong" if asked.question[1:] in {str(3 * n) for n in range(10)} else "right"
        if self.outage and "wrong" in asked.question:
            return "no verdict"
        who = "strict" if "strict" in asked.system else "lenient"
        self.answered.append(who)
        return json.dumps({"pass": who == "lenient" or "wrong" not in asked.question, "reason": "so it is"})


@pytest.fixture
def models() -> Iterator[Models]:
    """The models of the evaluation."""
    models = Models()
    with function_model(models.answer) as models.url:
        yield models


EVALUATION = """
dataset: cases.jsonl
targets: [bot]
{labels}
graders:
  - {{name: strict, builtin: llm-judge, prompt: strict.md, judge_target: judge}}
  - {{name: lenient, builtin: llm-judge, prompt: lenient.md, judge_target: judge, weight: 0}}
  - {{name: same, builtin: exact}}
"""


def write_all(
    shell: CommandLine, models: Models, *, labels: Sequence[dict[str, object]] | None, cases: int = 24
) -> None:
    config = CONFIG.format(url=models.url)
    write_files(shell.folder, cases=cases, quintain_yaml=config, strict_md="strict", lenient_md="no")
    named = "" if labels is None else "labels: gold.jsonl"
    (shell.folder / "eval.yaml").write_text(EVALUATION.format(labels=named))
    (shell.folder / "gold.jsonl").write_text("".join(f"{json.dumps(label)}\n" for label in labels or ()))


def gold(cases: int = 24) -> list[dict[str, object]]:
    return [
        {"id": f"case-{n}", "output": "wrong" if n % 3 == 0 else "right", "pass": n % 3 != 0}
        for n in range(1, cases + 1)
    ]


def judges(result: dict[str, Any], half: str) -> dict[str, tuple[int, float]]:
    return {name: (one["labels"], one["agreement"]["value"]) for name, one in result["halves"][half].items()}


def test_two_judges_are_compared_on_labels_of_a_file_and_no_target_is_called(
    shell: CommandLine, models: Models
) -> None:
    write_all(shell, models, labels=gold(), cases=30)
    result: dict[str, Any] = shell.run("calibrate", "eval.yaml", "--json").json
    assert (result["exitCode"], result["source"]) == (0, "gold.jsonl")
    assert models.calls == {"strict": 24, "lenient": 24}
    development, held_out = judges(result, "development"), judges(result, "held-out")
    assert development["strict"][1] == held_out["strict"][1] == 1.0
    assert development["strict"][0] + held_out["strict"][0] == result["run"]["totals"]["trials"] == 24
    wrong = sum(n % 3 == 0 for n in range(1, 25))
    (compared,) = result["comparisons"]
    assert (compared["first"], compared["second"], compared["labels"]) == ("strict", "lenient", held_out["lenient"][0])
    assert compared["difference"]["worse"] == 0
    shown = [(one["judge"], one["label"], one["verdict"]) for one in result["disagreements"]]
    assert shown == [("lenient", False, True)] * (wrong - compared["difference"]["better"])
    assert json.loads((shell.folder / "runs/eval-calibration/calibration.json").read_text())["labels"] == 24

    assert "held-out half" in shell.run("calibrate", "eval.yaml").stdout
    assert models.calls == {"strict": 24, "lenient": 24}


def test_only_what_changed_or_failed_is_judged_again(shell: CommandLine, models: Models) -> None:
    write_all(shell, models, labels=gold())
    models.outage = True
    failed = shell.run("calibrate", "eval.yaml", "--json", code=1)
    assert failed.json["withoutVerdict"] == {"strict": 8, "lenient": 8}
    models.outage = False
    shell.run("calibrate", "eval.yaml")
    assert models.calls == {"strict": 24, "lenient": 24}

    (shell.folder / "lenient.md").write_text("another")
    write_gold = [*gold()[:-1], {**gold()[-1], "output": "something else"}]
    (shell.folder / "gold.jsonl").write_text("".join(f"{json.dumps(label)}\n" for label in write_gold))
    shell.run("calibrate", "eval.yaml")
    assert models.calls == {"strict": 25, "lenient": 48}


def test_one_half_is_asked_about_by_itself_and_within_the_budget(shell: CommandLine, models: Models) -> None:
    write_all(shell, models, labels=gold())
    stopped = shell.run("calibrate", "eval.yaml", "--half", "development", "--max-calls", "4", code=4)
    # Answers that nobody has judged are no errors, and nothing is judged again.
    (plan,) = (line for line in stopped.stderr.splitlines() if line.startswith("plan"))
    assert "labeled, to judge" in plan
    assert "again" not in plan
    assert "errors" not in stopped.stderr
    assert sum(models.calls.values()) == 4
    finished: dict[str, Any] = shell.run(
        "calibrate", "eval.yaml", "--half", "development", "--max-calls", "100", "--json"
    ).json
    assert list(finished["halves"]) == ["development"]
    assert finished["halves"]["development"]["strict"]["labels"] == finished["labels"]
    assert models.calls["strict"] == finished["labels"] < 24
    assert finished["comparisons"] == []


def test_labels_of_the_random_queue_are_used_and_others_are_counted(shell: CommandLine, models: Models) -> None:
    write_all(shell, models, labels=None)
    shell.run("calibrate", "eval.yaml", code=2)
    shell.run("run", "eval.yaml")
    folder = shell.folder / "runs" / "eval"
    rows = [Row.model_validate(row) for row in rows_of(folder)]
    for row in rows[:6]:
        label(folder, row, passed=row.output == "right")
    label(folder, rows[6], passed=True, chosen=Chosen.PICKED)
    label(folder, rows[7].with_fields(output="an earlier answer"), passed=True)
    before = models.calls
    result: dict[str, Any] = shell.run("calibrate", "eval.yaml", "--json").json
    assert result["labels"] == 6
    left_out = [{"labels": 1, "cases": [row.case_id]} for row in rows[6:8]]
    assert sorted(result["leftOut"].values(), key=str) == sorted(left_out, key=str)
    assert models.calls - before == {"strict": 6, "lenient": 6}
    shell.run("calibrate", "eval.yaml", "--output", "runs/eval", code=2)
    shell.run("run", "eval.yaml", "--output", "runs/eval-calibration", code=2)
    shell.run("rescore", "runs/eval-calibration", code=2)
    assert [Row.model_validate(row) for row in rows_of(folder)] == rows


def label(folder: Path, row: Row, *, passed: bool, chosen: Chosen = Chosen.RANDOM) -> None:
    shown = chosen is Chosen.PICKED
    append_note(folder, Note(**NoteKey.of(row)._asdict(), passed=passed, chosen=chosen, verdicts_shown=shown))


def test_labels_that_cannot_be_used_are_refused_before_a_call(shell: CommandLine, models: Models) -> None:
    right = {"id": "case-1", "output": "right", "pass": True}
    unknown = {**right, "id": "nobody"}
    refusals: list[tuple[list[dict[str, object]], str]] = [
        ([*gold(2), unknown, {**unknown, "id": "none"}], "nobody"),
        ([*gold(2), gold(2)[0]], "line 3"),
        ([{"id": "case-1", "output": "right"}], "pass"),
        ([{**right, "target": "robot"}], "robot"),
        ([], "no labels"),
    ]
    for labels, named in refusals:
        write_all(shell, models, labels=labels)
        assert named in shell.run("calibrate", "eval.yaml", "--json", code=2).stdout
    write_all(shell, models, labels=[*gold(2), unknown])
    (problem,) = shell.run("check", "eval.yaml", "--json", code=2).json["problems"]
    assert "1 of 3" in problem
    assert "'nobody'" in problem
    write_all(shell, models, labels=gold(3))
    lines = [line for line in (shell.folder / "eval.yaml").read_text().splitlines() if "llm-judge" not in line]
    (shell.folder / "eval.yaml").write_text("\n".join(lines))
    assert "llm-judge" in shell.run("calibrate", "eval.yaml", "--json", code=2).stdout
    assert models.calls == {}


def test_a_judge_of_what_a_target_did_is_not_calibrated_on_texts(shell: CommandLine, models: Models) -> None:
    write_all(shell, models, labels=gold())
    agent = "provider: command, command: ['true'], output_format: json"
    config = re.sub("provider: openai, model: bot.*(?=})", agent, (shell.folder / "quintain.yaml").read_text())
    (shell.folder / "quintain.yaml").write_text(config)
    evaluation = (shell.folder / "eval.yaml").read_text()
    (shell.folder / "eval.yaml").write_text(evaluation.replace("strict.md,", "strict.md, show: [output, steps],"))
    refused = shell.run("calibrate", "eval.yaml", "--json", code=2)
    assert "gold.jsonl: " in refused.stdout
    assert "strict" in refused.stdout
    assert models.calls == {}


def test_each_judge_of_a_jury_is_compared_with_the_labels(shell: CommandLine, models: Models) -> None:
    write_all(shell, models, labels=gold(6))
    evaluation = (shell.folder / "eval.yaml").read_text()
    jury = "{name: jury, builtin: llm-judge, prompt: strict.md, judge_targets: [judge, bot], min_votes: 1}"
    judges = "\n".join(line for line in evaluation.splitlines() if "judge" not in line)
    (shell.folder / "eval.yaml").write_text(f"{judges}\n  - {jury}\n")
    result: dict[str, Any] = shell.run("calibrate", "eval.yaml", "--json", code=None).json
    figures = next(iter(result["halves"].values()))
    assert list(figures) == ["jury", "jury · judge", "jury · bot"]
    assert figures["jury"]["labels"] == figures["jury · judge"]["labels"] > figures["jury · bot"]["labels"] == 0
    assert result["withoutVerdict"] == {"jury · bot": 6}
    assert result["comparisons"] == []


LISTS = """
dataset: cases.jsonl
targets: [bot]
labels: gold.jsonl
graders:
  - name: both
    all:
      - {builtin: llm-judge, prompt: strict.md, judge_target: judge}
      - {builtin: exact}
      - {any: [{builtin: llm-judge, prompt: lenient.md, judge_target: judge, not: true}], not: true}
  - {name: bad, not: true, any: [{builtin: llm-judge, prompt: strict.md, judge_target: judge}]}
"""


def test_judges_in_lists_are_compared_with_the_labels_each_by_itself_and_turned_around_where_its_list_is(
    shell: CommandLine, models: Models
) -> None:
    write_all(shell, models, labels=gold())
    (shell.folder / "eval.yaml").write_text(LISTS)
    result: dict[str, Any] = shell.run("calibrate", "eval.yaml", "--json").json
    assert models.calls == {"strict": 48, "lenient": 24}
    for half in result["halves"].values():
        strict, lenient, opposite = half["both · 1"], half["both · 3 · 1"], half["bad · 1"]
        assert list(half) == ["both · 1", "both · 3 · 1", "bad · 1"]
        assert (strict["agreement"]["value"], opposite["agreement"]["value"]) == (1.0, 0.0)
        assert 0 < lenient["agreement"]["value"] < 1
    assert result["withoutVerdict"] == {}
    assert len(result["comparisons"]) == 3


OWN = {"builtin": "llm-judge", "instructions": "strict", "judge_target": "judge"}


JURY = {"name": "own list", "any": [{**OWN, "judge_targets": ["judge", "bot"], "judge_target": None}]}


def write_own(shell: CommandLine, graders: str) -> None:
    """Give every second case two judges of its own, and the first a jury in a list."""
    rows = [json.loads(line) for line in (shell.folder / "cases.jsonl").read_text().splitlines()]
    for row in rows[::2]:
        row["graders"] = [{"builtin": "contains", "value": "r"}, {**OWN, "not": True}, OWN]
    rows[0]["graders"].append(JURY)
    (shell.folder / "cases.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (shell.folder / "eval.yaml").write_text(f"dataset: cases.jsonl\ntargets: [bot]\nlabels: gold.jsonl\n{graders}")


def test_judges_of_cases_are_compared_with_the_labels_of_their_cases_and_others_are_counted(
    shell: CommandLine, models: Models
) -> None:
    write_all(shell, models, labels=gold())
    write_own(shell, "")
    result: dict[str, Any] = shell.run("calibrate", "eval.yaml", "--json", code=None).json
    assert result["labels"] == 12
    assert [(one["labels"], one["cases"][0]) for one in result["leftOut"].values()] == [(12, "case-2")]
    figures = list(result["halves"].values())
    for name, agreement in (("llm-judge", 1.0), ("not-llm-judge", 0.0)):
        assert sum(half[name]["labels"] for half in figures) == 12
        assert {half[name]["agreement"]["value"] for half in figures} == {agreement}
    assert sum(half["own list · 1 · judge"]["labels"] for half in figures) == 1
    assert result["withoutVerdict"] == {"own list · 1": 1, "own list · 1 · bot": 1}
    assert result["comparisons"] == []
    before = models.calls["strict"]
    shell.run("calibrate", "eval.yaml", code=None)
    assert models.calls["strict"] == before


def test_a_judge_of_a_case_has_the_name_that_it_has_in_a_run(shell: CommandLine, models: Models) -> None:
    write_all(shell, models, labels=gold(3))
    shared = "{builtin: llm-judge, prompt: lenient.md, judge_target: judge}"
    write_own(shell, f"graders: [{{name: llm-judge-2, all: [{{builtin: exact}}]}}, {shared}]\n")
    result: dict[str, Any] = shell.run("calibrate", "eval.yaml", "--json", code=None).json
    for half in result["halves"].values():
        assert list(half)[:3] == ["llm-judge", "not-llm-judge", "llm-judge-3"]
        assert half["llm-judge"]["labels"] >= half["llm-judge-3"]["labels"]
    assert result["comparisons"] == []
