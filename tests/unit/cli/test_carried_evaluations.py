"""Evaluations of promptfoo and AgentV as `quintain init --from` reads them: what is carried, and what is noted."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import quintain
from quintain.errors import ConfigError
from quintain_cli.commands.init import packaged_file, read_other_tool
from quintain_cli.init.carried import CarriedEvaluation, project_files

Read = Callable[..., CarriedEvaluation]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads an evaluation in a folder with these files."""

    def read(text: str, **files: str) -> CarriedEvaluation:
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        (tmp_path / "evaluation.yaml").write_text(text)
        return read_other_tool(tmp_path / "evaluation.yaml")

    return read


def places(carried: CarriedEvaluation) -> list[str]:
    return [note.place for note in carried.left_out]


PROMPTFOO = "prompts: ['Say {{word}}{{ending}}']\nproviders: [echo]\n"


def test_promptfoos_templates_are_filled_in_assertions_and_variables(read: Read) -> None:
    carried = read(
        PROMPTFOO + "tests:\n"
        "  - vars: {word: [one, two], twice: '{{word}}{{ word }}'}\n"
        "    assert: [{type: contains-any, value: '{{twice}}, three'}, {type: javascript, value: 'true'}]\n"
    )
    assert [(case["word"], case["twice"], case["ending"]) for case in carried.cases] == [
        ("one", "oneone", ""), ("two", "twotwo", ""),
    ]  # fmt: skip
    assert [case["assertions"][0]["value"] for case in carried.cases] == [["oneone", "three"], ["twotwo", "three"]]
    assert places(carried) == ["tests[0].assert[1]"]  # once, not for each of the values


def test_promptfoos_files_are_read(read: Read) -> None:
    carried = read(
        "prompts: [file://asked/*.txt]\nproviders: [echo]\n"
        "tests: [cases.jsonl, broken.jsonl, gone.yaml, {vars: {a: file://note.txt, b: file://make.py}}]\n",
        asked__1_dot_txt="First {{a}}", asked__2_dot_txt="Second {{a}}",
        cases_dot_jsonl='{"vars": {"a": "x"}}\n', broken_dot_jsonl="{", note_dot_txt="a note",
    )  # fmt: skip
    assert carried.prompts == ["First {{ a }}", "Second {{ a }}"]
    assert [case["a"] for case in carried.cases] == ["x", "a note"]
    assert places(carried) == ["tests[1]", "tests[2]", "tests[3].vars.b"]


@pytest.mark.parametrize(
    ("assertion", "place"),
    [
        ("{type: is-json, value: {type: object}}", ""),
        ("{type: contains, value: a, transform: output.trim()}", ""),
        ("{type: contains, value: file://a.txt}", ""),
        ("{type: llm-rubric}", ""),
        ("{type: llm-rubric, value: file://judge.py}", ""),
        ("{$ref: '#/assertionTemplates/a'}", ""),
        ("{type: contains, value: a, weight: 2}", ".weight"),
    ],
)
def test_what_an_assertion_has_beyond_ours_is_a_note(read: Read, assertion: str, place: str) -> None:
    carried = read(PROMPTFOO + f"tests: [{{assert: [{assertion}]}}]\n")
    assert places(carried) == [f"tests[0].assert[0]{place}"]
    (one,) = carried.cases[0]["assertions"]
    assert one["type"] == ("contains" if place else "not-carried")


def test_a_default_test_in_a_file_is_read_and_one_that_cannot_be_is_in_each_row(read: Read) -> None:
    text = PROMPTFOO + "defaultTest: file://shared.yaml\ntests: [{vars: {word: one}}]\n"
    carried = read(text, shared_dot_yaml="assert: [{type: contains, value: '{{word}}'}]")
    assert [case["assertions"] for case in carried.cases] == [[{"type": "contains", "value": "one"}]]
    unread = read(text.replace("shared", "gone"))
    assert [case["assertions"] for case in unread.cases] == [[{"type": "not-carried", "value": "defaultTest"}]]


@pytest.mark.parametrize("key", ["threshold: 0.5", "assertScoringFunction: file://x.js", "options: {transform: x}"])
def test_what_changes_when_a_test_passes_is_in_its_row(read: Read, key: str) -> None:
    carried = read(PROMPTFOO + f"tests: [{{vars: {{word: one}}, {key}, assert: [{{type: equals, value: one}}]}}]\n")
    name = key.partition(":")[0]
    assert carried.cases[0]["assertions"][1:] == [{"type": "not-carried", "value": name}]
    assert f"tests[0].{name}" in places(carried)


def test_an_evaluation_without_a_prompt_or_a_test_is_refused(read: Read) -> None:
    for text in ("prompts: [file://gone.txt]\n", "tests: [{input: [{role: user, content: [{type: image}]}]}]"):
        with pytest.raises(ConfigError):
            read(text)


def test_without_tests_promptfoos_prompts_are_asked_as_they_are(read: Read) -> None:
    assert [{**case, "id": ""} for case in read(PROMPTFOO).cases] == [{"id": "", "word": "", "ending": ""}]


@pytest.mark.parametrize(
    "text",
    [
        "prompts: [a]\nproviders: ['webhook:http://127.0.0.1/']\n",
        "execution: {target: codex}\ntests: [{id: a, input: b}]\n",
        "tests: [{id: a, input: b}]\n",
    ],
)
def test_where_no_target_is_carried_a_mock_stands_in_and_is_noted(read: Read, text: str) -> None:
    targets = "targets: [{name: codex, provider: codex}, {name: dear, provider: openai, model: m}]\n"
    carried = read(text, targets_dot_yaml=targets)
    files = project_files(carried, "")
    assert yaml.safe_load(files["eval.yaml"])["targets"] == ["mock"]
    assert yaml.safe_load(files["quintain.yaml"])["targets"]["mock"] == {"provider": "mock"}
    assert "" in places(carried)


AGENTV = """\
input: Be brief.
assertions: [{type: contains, value: "Yes"}]
tests:
  - id: files
    metadata: {id: other, day: 2026-01-02}
    input:
      - {role: system, content: {rules: [one]}}
      - {role: user, content: [{type: text, value: Read this.}, {type: file, value: ./notes.md}]}
    expected_output: {risk: low}
    assertions:
      - {type: rubrics, criteria: [is kind, {id: b, outcome: is short}]}
      - {type: llm-grader}
    criteria: is right
  - id: gone
    input: [{role: user, content: [{type: file, value: gone.md}]}]
  - cases.yaml
"""


def test_agentvs_files_inputs_and_criteria_are_carried(read: Read) -> None:
    carried = read(
        AGENTV,
        notes_dot_md="A note.\n",
        cases_dot_yaml="[{id: more, input: Hello}]",
        targets_dot_yaml="targets: [{name: default, provider: mock, judge_target: gone}]\n",
    )
    first, more = carried.cases
    assert (first["id"], more["id"]) == ("files", "more")
    assert first["messages"] == [
        {"role": "user", "content": "Be brief."},
        {"role": "system", "content": '{\n  "rules": [\n    "one"\n  ]\n}'},
        {"role": "user", "content": 'Read this.\n\n<file path="./notes.md">\nA note.\n</file>'},
    ]
    assert json.loads(first["expected"]) == {"risk": "low"}
    judged = [one["value"] for one in first["assertions"] if one["type"] == "judge"]
    assert judged == ["is kind", "is short", "is right"]
    # AgentV compares case, too.
    assert first["assertions"][-1] == {"type": "contains", "value": "Yes"}
    assert json.loads(project_files(carried, "")["cases.jsonl"].splitlines()[0])["day"] == "2026-01-02"
    assert sorted(places(carried)) == ["targets", "tests[1]", "tests[1].input[0]"]
    assert [note.file for note in carried.left_out if note.place == "targets"] == ["targets.yaml"]


def test_a_target_that_agentvs_evaluation_does_not_use_needs_no_variables(read: Read) -> None:
    carried = read(
        "tests: [{id: a, input: b}]\n",
        targets_dot_yaml="targets: [{name: default, provider: mock, judge_target: judge}, "
        "{name: judge, provider: mock}, {name: other, provider: openai, model: '${{ UNSET }}'}]\n",
    )
    assert list(carried.targets) == ["default", "judge"]
    assert [note.reason for note in carried.left_out] == ["the target other, which this evaluation does not use"]


@pytest.fixture
def assertions(tmp_path: Path) -> ModuleType:
    """The grader that `quintain init --from` writes."""
    path = tmp_path / "assertions.py"
    path.write_text(packaged_file("assertions.py"))
    spec = importlib.util.spec_from_file_location("carried_assertions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def graded(assertions: ModuleType, output: str, *listed: dict[str, Any]) -> list[bool]:
    case = quintain.Case(id="a", question="b", metadata={"assertions": list(listed)})
    return [one["pass"] for one in assertions.assertions(case, output, None)["checks"]]


def test_a_case_none_of_whose_assertions_was_carried_is_an_error_and_no_pass(assertions: ModuleType) -> None:
    not_carried = {"type": "not-carried", "value": "javascript"}
    with pytest.raises(ValueError, match="javascript"):
        graded(assertions, "x", not_carried)
    assert graded(assertions, "x", not_carried, {"type": "equals", "value": "x"}) == [True]


def test_a_case_some_of_whose_assertions_were_not_carried_says_so(assertions: ModuleType, read: Read) -> None:
    carried = read(PROMPTFOO + "tests: [{assert: [{type: equals, value: x}, {type: javascript, value: 'true'}]}]\n")
    graders = yaml.safe_load(project_files(carried, "")["eval.yaml"])["graders"]
    assert [(grader["function"], grader.get("weight")) for grader in graders] == [
        ("assertions:assertions", None),
        ("assertions:carried", 0),
    ]
    case = quintain.Case(id="a", question="b", metadata=carried.cases[0])
    verdict = assertions.assertions(case, "x", None)
    assert (verdict["pass"], "javascript" in verdict["reason"]) == (True, True)
    shown = assertions.carried(case)
    assert (shown["pass"], [one["pass"] for one in shown["checks"]]) == (False, [True, False])
    whole = read(PROMPTFOO + "tests: [{assert: [{type: equals, value: x}]}]\n")
    assert len(yaml.safe_load(project_files(whole, "")["eval.yaml"])["graders"]) == 1


def test_an_expected_object_is_compared_as_json(assertions: ModuleType) -> None:
    expected = {"type": "equals", "value": {"a": [1]}}
    assert graded(assertions, '{"a": [1]}', expected) == [True]
    assert graded(assertions, '{"a": [2]}', expected) == [False]
    assert graded(assertions, "{'a': [1]}", expected) == [False]
