"""Evaluations of promptfoo and AgentV as `quintain init --from` reads them: what is carried, and what is noted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from quintain.errors import ConfigError
from quintain_cli.commands.init import read_other_tool
from quintain_cli.init.carried import CarriedEvaluation
from quintain_cli.init.project import project_files
from quintain_cli.init.promptfoo import assertion_of

Read = Callable[..., CarriedEvaluation]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads an evaluation in a folder with these files."""

    def read(text: str, name: str = "evaluation.yaml", **files: str) -> CarriedEvaluation:
        for file, content in files.items():
            path = tmp_path / file.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content.encode())
        (tmp_path / name).write_bytes(text.encode())
        return read_other_tool(tmp_path / name, tmp_path / "out")

    return read


def places(carried: CarriedEvaluation) -> list[str]:
    return [note.place for note in carried.left_out]


def cases_of(carried: CarriedEvaluation) -> list[dict[str, Any]]:
    return [json.loads(line) for line in project_files(carried)["cases.jsonl"].split("\n")[:-1]]


def evaluation_of(carried: CarriedEvaluation) -> dict[str, Any]:
    evaluation = yaml.safe_load(project_files(carried)["eval.yaml"])
    assert isinstance(evaluation, dict)
    return evaluation


PROMPTFOO = "prompts: ['Say {{word}}{{ending}}']\nproviders: [echo]\n"


def one_grader(read: Read, assertion: str) -> Any:
    """The grader of a case with one assertion, and the places of the notes."""
    carried = read(PROMPTFOO + f"tests: [{{vars: {{word: one}}, assert: [{assertion}]}}]\n")
    return [*(cases_of(carried)[0].get("graders") or []), *places(carried)]


JUDGE = "The answer passes if this statement about it is true:\n\n"
CONTAINS = {"builtin": "contains"}
NOT_CARRIED = {"name": "not-carried", "builtin": "regex", "pattern": "(?!)"}


@pytest.mark.parametrize(
    ("assertion", "grader"),
    [
        ("{type: equals, value: ' a '}", {"builtin": "exact", "strip": False, "value": " a "}),
        ("{type: equals, value: true}", {"builtin": "exact", "strip": False, "value": "true"}),
        ("{type: not-equals, value: 1.0}", {"builtin": "exact", "strip": False, "value": "1", "not": True}),
        ("{type: equals, value: [1, {a: 2}]}", {"builtin": "exact", "value": [[1, {"a": 2}]]}),
        ("{type: contains, value: 5, weight: 0}", {**CONTAINS, "value": "5", "weight": 0}),
        ("{type: icontains, value: '{{word}}!'}", {**CONTAINS, "ignore_case": True, "value": "one!"}),
        ("{type: contains, value: a, metric: 'm {{word}}'}", {**CONTAINS, "value": "a", "name": "m one"}),
        ("{type: starts-with, value: a}", {"builtin": "starts-with", "value": "a"}),
        ("{type: contains-any, value: 'a, \"b, c\" ,'}", {**CONTAINS, "value": ["a", "b, c"]}),
        (
            "{type: contains-all, value: [a, 1]}",
            {"any": [{**CONTAINS, "value": one, "not": True} for one in "a1"], "not": True},
        ),
        ("{type: regex, value: '^a$'}", {"builtin": "regex", "pattern": "^a$"}),
        ("{type: is-json}", {"builtin": "json-schema", "schema": {}}),
        ("{type: levenshtein, value: a}", {"builtin": "edit-distance", "value": "a", "max": 5}),
        ("{type: latency, threshold: 500}", {"builtin": "latency", "max_ms": 500}),
        ("{type: cost, threshold: 0.1}", {"builtin": "cost", "max_usd": 0.1}),
        (
            "{type: assert-set, threshold: 0.5, assert: [{type: contains, value: a}]}",
            {"all": [{**CONTAINS, "value": "a"}], "threshold": 0.5},
        ),
        (
            "{type: not-llm-rubric, value: 'is {{word}}', threshold: 0.8}",
            {
                "builtin": "llm-judge", "not": True, "threshold": 0.8,
                "instructions": JUDGE + "is one",
            },
        ),
    ],
)  # fmt: skip
def test_an_assertion_becomes_a_grader_of_its_case(read: Read, assertion: str, grader: dict[str, Any]) -> None:
    assert one_grader(read, assertion) == [grader]


@pytest.mark.parametrize(
    "assertion",
    [
        "{type: javascript, value: 'true'}",
        "{type: contains, value: a, transform: output.trim()}",
        "{type: contains, value: ''}",
        "{type: contains, value: file://gone.txt}",
        "{type: contains-any, value: ' , '}",
        "{type: contains-any, value: [a, '']}",
        "{type: contains-all, value: '\"a'}",
        "{type: contains-all, value: '\"a\" b'}",
        "{type: regex, value: '('}",
        "{type: is-json, value: {type: nothing}}",
        "{type: llm-rubric}",
        "{type: llm-rubric, value: file://judge.py}",
        "{type: contains, value: '{{ word | dump }}'}",
        "{type: latency}",
        "{value: a}",
    ],
)
def test_an_assertion_without_a_counterpart_is_noted_and_passes_nothing(read: Read, assertion: str) -> None:
    found = one_grader(read, assertion)
    assert found[0] == NOT_CARRIED
    assert set(found[1:]) == {"tests[0].assert[0]"}


def test_similarity_is_judged_with_the_model_that_promptfoo_takes(read: Read) -> None:
    (grader,) = one_grader(read, "{type: similar, value: hello}")
    assert (grader["threshold"], grader["embedding_target"]) == (0.75, "text-embedding-3-large")


@pytest.mark.parametrize(
    ("cell", "assertion"),
    [
        ("is-json", {"type": "is-json", "value": None}),
        ("similar: a", {"type": "similar", "value": "a", "threshold": 0.8}),
        ("not-levenshtein(5): a", {"type": "not-levenshtein", "value": "a", "threshold": 5}),
        ("grade:is polite", {"type": "llm-rubric", "value": "is polite"}),
        ("answer: 42", {"type": "equals", "value": "answer: 42"}),
        ("https://example.org/a", {"type": "equals", "value": "https://example.org/a"}),
        ("containsx: a", {"type": "equals", "value": "containsx: a"}),
        ("icontains-any: a, b", {"type": "icontains-any", "value": ["a", "b"]}),
        ("fn: output", {"type": "javascript"}),
        ("file://check.py:f", {"type": "python"}),
    ],
)
def test_a_cell_is_an_assertion_by_promptfoos_syntax(cell: str, assertion: dict[str, Any]) -> None:
    assert assertion_of(cell) == assertion


def test_promptfoos_columns_are_carried_or_noted(read: Read) -> None:
    header = (
        "word,__expected1,__expected2,__description,__metric,__threshold,__metadata:area,__prefix,"
        "__config:__expected1:threshold\n"
    )
    carried = read(
        PROMPTFOO + "tests: cases.csv\n",
        cases_dot_csv=f'\ufeff{header}a,contains: a,"contains: b",one,m,0.5,x,Please,1\n',
    )
    graders = [{**CONTAINS, "value": value, "name": "m"} for value in "ab"]
    expected = {"id": "one", "area": "x", "word": "a", "ending": ""}
    assert cases_of(carried) == [
        {**expected, "graders": [{"name": "assertions", "all": graders, "threshold": 0.5}]},
    ]  # fmt: skip
    assert [(note.file, note.line) for note in carried.left_out] == [("cases.csv", 2)] * 2


def test_promptfoos_templates_are_filled_in_assertions_and_variables(read: Read) -> None:
    carried = read(
        PROMPTFOO + "tests:\n"
        "  - vars: {word: [one, two], twice: '{{word}}{{ word }}', user: {name: Ann}, line: \"a\\n\", number: 1.0}\n"
        "    assert: [{type: contains-any, value: '{{twice}}, {{user.name}}'}, {type: javascript, value: 'true'}]\n"
    )
    cases = cases_of(carried)
    assert [(case["word"], case["twice"], case["ending"], case["line"], case["number"]) for case in cases] == [
        ("one", "oneone", "", "a", 1), ("two", "twotwo", "", "a", 1),
    ]  # fmt: skip
    assert [case["graders"][0]["value"] for case in cases] == [["oneone", "Ann"], ["twotwo", "Ann"]]
    assert [case["graders"][1] for case in cases] == [{**NOT_CARRIED, "weight": 0}] * 2
    assert places(carried) == ["tests[0].assert[1]"]  # once, not for each of the values


def test_a_name_that_a_case_uses_itself_is_changed_everywhere(read: Read) -> None:
    carried = read(
        "prompts: ['{{id}} {{ user.id }} {% if expected == \"id\" %}x{% endif %}']\nproviders: [echo]\n"
        "tests: [{vars: {id: 7, user: {id: 8}, expected: y}}]\n"
    )
    assert evaluation_of(carried)["prompts"] == [
        '{{ var_id }} {{ var_user.id }} {% if var_expected == "id" %}x{% endif %}'
    ]
    assert cases_of(carried)[0].keys() >= {"var_id", "var_user", "var_expected"}


@pytest.mark.parametrize(
    ("prompt", "is_carried"),
    [
        ("Translate {{a}} to English/French", True),
        ("Is main.py a program?", True),
        ("Hello", True),
        ("{% for x in list %}{{ x | upper }}{% endfor %}", True),
        *(("[INST] {{a}} [/INST]", True), ("prompts/gone", False), ("gone.txt", False), ("file://gone", False)),
        *(("*.md", False), ("make.py:ask", False), ("exec:./make a", False), ("langfuse://a:1", False)),
        ("package:@a/b:c", False),
        ("https://example.org/prompt", False),
        *(("{{ a | dump }}", False), ("{{ a.length }}", False), ("{{ env.HOME }}", False)),
        ("{% asyncEach x in a %}{% endeach %}", False),
        ("{% if a === b %}x{% endif %}", False),
        ('{"messages": []}', False),
    ],
)
def test_a_prompt_is_a_text_or_is_left_out_by_name(read: Read, prompt: str, *, is_carried: bool) -> None:
    text = json.dumps({"prompts": [prompt, "{{a}}"], "providers": ["echo"], "tests": [{"vars": {"a": "x"}}]})
    carried = read(text)
    texts = [*([prompt.replace("{{a}}", "{{ a }}")] if is_carried else []), "{{ a }}"]
    assert [one.get("user") for one in carried.prompts] == texts
    assert places(carried) == ([] if is_carried else ["prompts[0]"])


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q: {{ a }}"}]


def test_prompts_in_files_are_read_as_promptfoo_reads_them(read: Read) -> None:
    carried = read(
        "prompts: [asked/*.txt, chats, file://a.md, lines.jsonl, table.csv]\nproviders: [echo]\n",
        asked__1_dot_txt="First {{a}}\r\n---\r\nSecond", asked__2_dot_txt="Third\n--- no\n",
        chats__1_dot_json=json.dumps(CHAT), chats__2_dot_yaml=yaml.safe_dump(CHAT),
        chats__3_dot_yml="- role: user\n  content: {{ a }}\n", chats__4_dot_sh="echo", a_dot_md="# A\n\n---\n\nB",
        lines_dot_jsonl=json.dumps(CHAT), table_dot_csv='label,prompt\nshort,"One, {{a}}"\n',
    )  # fmt: skip
    assert carried.prompts == [
        {"user": "First {{ a }}"}, {"user": "Second"}, {"user": "Third\n--- no"},
        {"messages": CHAT}, {"messages": CHAT}, {"messages": [{"role": "user", "content": "{{ a }}"}]},
        {"user": "# A\n\n---\n\nB"}, {"messages": CHAT}, {"name": "short", "user": "One, {{ a }}"},
    ]  # fmt: skip
    assert [note.reason for note in carried.left_out] == ["chats/4.sh: a program, which is not run"]


def test_variables_and_tests_in_files_are_read(read: Read) -> None:
    carried = read(
        "prompts: ['{{a}}']\nproviders: [echo]\n"
        "tests: [cases.jsonl, more.yaml, gone.yaml, make.py, {vars: {a: file://note.txt}},"
        " {vars: {a: file://make.py}}, {vars: {a: file://notes/*.md}}, {vars: {a: file://table.yaml}}]\n",
        cases_dot_jsonl='{"vars": {"a": "x"}}\n', more_dot_yaml="- vars: {a: y}\n", note_dot_txt="a note\n",
        notes__1_dot_md="one", notes__2_dot_md="two", table_dot_yaml="b: [1]",
    )  # fmt: skip
    assert [case["a"] for case in cases_of(carried)] == ["x", "y", "a note", "one", "two", '{"b":[1]}']
    assert places(carried) == ["tests[2]", "tests[3]", "tests[5].vars.a"]


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("cases.csv", "a,b\n1\n", "cases.csv: line 2"),
        ("cases.csv", 'a,b\n"1,2\n3,4\n', "cases.csv: line 2"),
        ("cases.jsonl", '{"vars": {}}\n{\n', "cases.jsonl: line 2"),
        ("cases.yaml", "- vars: {\n", "cases.yaml: line 2"),
        ("cases.csv", "a,__config:b\n1,2\n", ""),
    ],
)
def test_a_file_that_cannot_be_read_ends_the_import_with_its_line(
    read: Read, name: str, content: str, where: str
) -> None:
    text = f"prompts: [a]\nproviders: [echo]\ntests: {name}\n"
    if not where:
        assert places(read(text, **{name.replace(".", "_dot_"): content})) == ["__config:b"]
        return
    with pytest.raises(ConfigError, match=where):
        read(text, **{name.replace(".", "_dot_"): content})


def test_a_file_outside_of_the_folder_is_read_and_said(read: Read, tmp_path: Path) -> None:
    (tmp_path.parent / "shared-prompt.txt").write_text("Shared")
    carried = read("prompts: [file://../shared-prompt.txt]\nproviders: [echo]\n")
    assert (carried.prompts, carried.outside) == ([{"user": "Shared"}], ["../shared-prompt.txt"])


def test_a_default_test_is_of_every_test(read: Read) -> None:
    text = PROMPTFOO + "defaultTest: file://shared.yaml\ntests: [{vars: {word: one}}]\n"
    carried = read(text, shared_dot_yaml="assert: [{type: contains, value: '{{word}}'}]")
    assert cases_of(carried)[0]["graders"] == [{**CONTAINS, "value": "one"}]
    with pytest.raises(ConfigError, match="gone"):
        read(text.replace("shared", "gone"))


@pytest.mark.parametrize("key", ["assertScoringFunction: file://x.js", "options: {transform: x}"])
def test_assertions_about_something_else_are_not_carried(read: Read, key: str) -> None:
    carried = read(PROMPTFOO + f"tests: [{{vars: {{word: one}}, {key}, assert: [{{type: equals, value: one}}]}}]\n")
    (case,) = cases_of(carried)
    assert (case["graders"], places(carried)) == ([NOT_CARRIED], ["tests[0]"])


@pytest.mark.parametrize(
    "text",
    [
        "prompts: [file://gone.txt]\n",
        "tests: [{input: [{role: user, content: [{type: image}]}]}]",
        "prompts: [a]\ntests: [1]\n",
        "prompts: [a]\ntests: gone.csv\n",
        "tests: [{vars: {a: b}}]\nproviders: [echo]\n",
    ],
)
def test_an_evaluation_that_asks_nothing_is_refused(read: Read, text: str) -> None:
    with pytest.raises(ConfigError, match=r"none of its"):
        project_files(read(text))


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
    files = project_files(carried)
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
      - {type: rubrics, criteria: [is kind, {id: b, outcome: is short, weight: 2}]}
      - {type: llm-grader, min_score: 0.6}
      - {type: equals, value: " a ", required: true}
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
    first, more = cases_of(carried)
    assert (first["id"], more["id"]) == ("files", "more")
    assert first["messages"] == [
        {"role": "user", "content": "Be brief."},
        {"role": "system", "content": '{\n  "rules": [\n    "one"\n  ]\n}'},
        {"role": "user", "content": 'Read this.\n\n<file path="./notes.md">\nA note.\n</file>'},
    ]
    assert (json.loads(first["expected"]), first["day"]) == ({"risk": "low"}, "2026-01-02")
    judged = [
        (one["instructions"].removeprefix(JUDGE), one.get("weight"), one.get("threshold"))
        for one in first["graders"][:3]
    ]
    assert judged == [("is kind", None, None), ("is short", 2, None), ("is right", None, 0.6)]
    # AgentV compares case, and no white space around the texts.
    assert first["graders"][3:] == [{"builtin": "exact", "strip": True, "value": " a "}, {**CONTAINS, "value": "Yes"}]
    assert set(places(carried)) == {
        "targets[0]", "tests[0].metadata.id", "tests[0].assertions[2].required", "tests[1].input[0]", "tests[1]",
    }  # fmt: skip
    assert [note.file for note in carried.left_out if note.place == "targets[0]"] == ["targets.yaml"]


def test_a_target_that_agentvs_evaluation_does_not_use_needs_no_variables(read: Read) -> None:
    carried = read(
        "tests: [{id: a, input: b}]\n",
        targets_dot_yaml="targets: [{name: default, provider: mock, judge_target: judge}, "
        "{name: judge, provider: mock}, {name: other, provider: openai, model: '${{ UNSET }}'}]\n",
    )
    assert (carried.evaluated, sorted(carried.targets)) == (["default"], ["default", "judge"])


AGENTV_5 = """\
providers: [local]
prompts: ["{{ input }}"]
default_test: {options: {}, assert: [{type: icontains, value: agentv}]}
evaluate_options: {repeat: 2, max_concurrency: 3}
tests:
  - id: chat
    vars:
      product: AgentV
      input: [{role: system, content: Be brief.}, {role: user, content: "What is {{ vars.product }}?"}]
    assert: [Explains it, {type: script, command: [python3, a.py]}]
  - id: text
    vars: {input: "What is AgentV?"}
"""


def test_agentv_5_is_promptfoos_shape_in_snake_case(read: Read) -> None:
    carried = read(
        AGENTV_5,
        _dot_agentv__providers_dot_yaml="- {id: openai, label: local, config: {model: '{{ env.MODEL }}', base_url: 'http://127.0.0.1/v1'}}\n",
    )
    chat, text = cases_of(carried)
    assert chat["messages"][1] == {"role": "user", "content": "What is AgentV?"}
    assert (text["question"], evaluation_of(carried)["repeats"]) == ("What is AgentV?", 2)
    assert chat["graders"][1]["instructions"] == JUDGE + "Explains it"
    assert text["graders"] == [{**CONTAINS, "ignore_case": True, "value": "agentv"}]
    assert carried.targets == {
        "local": {"provider": "openai", "base_url": "http://127.0.0.1/v1", "model": "${{ MODEL }}"}
    }
    assert places(carried) == ["evaluate_options.max_concurrency", "tests[0]"]


def test_the_judges_of_agentv_are_its_targets(read: Read) -> None:
    carried = read(
        "prompts: ['{{ a }}']\nproviders: [echo, gone]\ndefault_test: {options: {provider: judge}}\n"
        "tests: [{vars: {a: b}, assert: [Is kind, {type: llm-rubric, value: Is short, provider: gone}]}]\n",
        _dot_agentv__providers_dot_yaml="- {id: mock, label: judge, response: '{}'}\n",
    )
    judges = [one.get("judge_target") for one in cases_of(carried)[0]["graders"]]
    assert (carried.evaluated, judges) == (["echo"], ["judge", None])
    assert places(carried) == ["providers[1]", "tests[0].assert[1]"]


def test_an_empty_list_that_a_condition_asks_for_is_named(read: Read) -> None:
    prompts = "prompts: ['Say it{% if names %} to all{% endif %}']\nproviders: [echo]\n"
    carried = read(prompts + "tests: [{vars: {names: [], word: a}}, {vars: {names: [a], word: a}}]\n")
    assert len(cases_of(carried)) == 2
    assert "tests[0].vars" in places(carried)
    assert "tests[1].vars" not in places(carried)
