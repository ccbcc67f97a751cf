"""Prompts: templates of what is asked, each a column of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.engine.requirements import case_requirements
from quintain_runner.plan.changes import input_fingerprint
from quintain_runner.plan.dataset import open_dataset
from quintain_runner.spec.evaluation import Evaluation, load_evaluation
from quintain_runner.spec.prompts import Prompt, parse_template
from support.evaluations import EXACT, Json, cases, write_evaluation

GRADERS: list[Json] = [{**EXACT}]

CASE = Case(
    id="7",
    question="Where is {{ id }}?",
    system_prompt="own",
    metadata={"topic": {"name": "Rom"}, "n": [1, "é"], "flag": True, "empty": None},
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("plain { } }} text", "plain { } }} text"),
        ("{{id}}-{{ id }}", "7-7"),
        ("{{ topic.name }}, {{ n }}, {{ flag }}", 'Rom, [1, "é"], true'),
        # What a value holds is no template.
        ("{{ question }}", "Where is {{ id }}?"),
        ("{{ '{{' }} {{ \"}}\" }} {{ '{%' }}", "{{ }} {%"),
        ("\n{{\n id\n}}\n", "\n7\n"),
    ],
)
def test_a_template_inserts_the_fields_of_the_case_as_they_are(template: str, text: str) -> None:
    assert parse_template(template).render(CASE) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ id",
        "{{ id | upper }}",
        "{{ 1 + 1 }}",
        "{{}}",
        "{{ id() }}",
        "{% if id %}x{% endif %}",
        "a {# b #}",
        "{{{ id }}}",
    ],
)
def test_markup_that_is_no_field_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="is no field"):
        parse_template(template)


def evaluation(folder: Path, prompts: object, rows: list[Json] | None = None) -> Evaluation:
    return load_evaluation(write_evaluation(folder, rows or cases(2), GRADERS, prompts=prompts))


def asked(prompt: Prompt) -> dict[str, object]:
    changed = prompt.apply(CASE)
    messages = None if changed.messages is None else [(one.role, one.content) for one in changed.messages]
    return {"question": changed.question, "messages": messages, "system": changed.system_prompt}


def test_prompts_are_texts_mappings_and_files(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "brief.txt").write_text("Briefly: {{ id }}\n")
    (tmp_path / "prompts" / "chat.json").write_text('[{"role": "user", "content": "chat {{ id }}"}]')
    given: list[object] = [
        "text {{ id }}",
        "file://prompts/brief.txt",
        {"file": "prompts/chat.json"},
        {"name": "strict", "system": "be strict"},
        {"system": "file://prompts/brief.txt", "messages": [{"role": "assistant", "content": "{{ topic.name }}"}]},
    ]
    prompts = evaluation(tmp_path, given).prompts
    assert [prompt.name for prompt in prompts] == ["prompt-1", "brief", "chat", "strict", "prompt-5"]
    assert [asked(prompt) for prompt in prompts] == [
        {"question": "text 7", "messages": None, "system": "own"},
        {"question": "Briefly: 7", "messages": None, "system": "own"},
        {"question": None, "messages": [("user", "chat 7")], "system": "own"},
        {"question": "Where is {{ id }}?", "messages": None, "system": "be strict"},
        {"question": None, "messages": [("assistant", "Rom")], "system": "Briefly: 7"},
    ]


@pytest.mark.parametrize(
    ("prompts", "place"),
    [
        ([], "prompts"),
        (["{{ id | upper }}"], "prompts[0]"),
        ([{"name": "a"}], "prompts[0]"),
        ([{"user": "a", "messages": [{"role": "user", "content": "b"}]}], "prompts[0]"),
        ([{"messages": [{"role": "user", "content": "{% x %}"}]}], "prompts[0].messages[0].content"),
        ([{"name": "a", "user": "b", "label": "c"}], "unknown key 'label'"),
        (["a", {"name": "prompt-1", "user": "b"}], "prompts: named twice: prompt-1"),
        (["file://missing.txt"], "missing.txt"),
        (["file://empty.txt"], "empty.txt"),
        (["file://broken.txt"], "broken.txt"),
        (["file://chat.yaml"], "chat.yaml"),
    ],
)
def test_a_prompt_that_cannot_be_asked_is_refused_with_its_place(tmp_path: Path, prompts: object, place: str) -> None:
    for name, text in (("empty.txt", "\n"), ("broken.txt", "{{ id"), ("chat.yaml", "- {role: robot, content: x}")):
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as refused:
        evaluation(tmp_path, prompts)
    assert place in str(refused.value)


def problems(evaluation: Evaluation) -> list[str]:
    try:
        open_dataset(evaluation, evaluation.folder / "out", {}, case_requirements(evaluation, ["bot"]))
    except ConfigError as error:
        return error.message.splitlines()
    return []


def test_a_field_that_a_case_lacks_is_an_error_with_the_field_and_the_case(tmp_path: Path) -> None:
    rows: list[Json] = [
        {"id": "a", "question": "q", "expected": "q", "lang": "en"},
        {"id": "b", "question": "q", "expected": "q", "lang": None},
        {"id": "c", "question": "q", "expected": "q", "lang": "  "},
    ]
    (problem, empty) = problems(evaluation(tmp_path, [{"name": "p", "user": "{{ lang }}"}], rows))
    assert "'lang'" in problem
    assert "ids 'b'" in problem
    assert "empty message" in empty
    assert problems(evaluation(tmp_path, [{"name": "p", "user": "{{ question }}"}], rows)) == []


def test_a_case_needs_a_question_only_where_a_prompt_asks_it(tmp_path: Path) -> None:
    rows: list[Json] = [{"id": "a", "city": "Rome", "expected": "Italy"}]
    assert problems(evaluation(tmp_path, ["Where is {{ city }}?"], rows)) == []
    (problem,) = problems(evaluation(tmp_path, ["Where is {{ city }}?", {"system": "be brief"}], rows))
    assert "question" in problem
    assert problems(load_evaluation(write_evaluation(tmp_path, rows, GRADERS)))


def test_a_request_that_a_prompt_makes_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("{{ question }}" + "x" * 1024 * 1024)
    assert problems(evaluation(tmp_path, ["file://long.txt"]))


def test_the_settings_of_a_case_are_checked_and_part_of_its_input(tmp_path: Path) -> None:
    def input_of(**fields: object) -> str:
        return input_fingerprint(Case.model_validate({"id": "a", "question": "q", **fields}))

    assert input_of() == input_of(settings=None)
    assert len({input_of(), input_of(settings={"temperature": 0.5}), input_of(settings={"temperature": 0})}) == 3
    for settings in ({"temprature": 1}, {"max_tokens": 0}, "hot"):
        rows: list[Json] = [{"id": "a", "question": "q", "expected": "q", "settings": settings}]
        (problem,) = problems(load_evaluation(write_evaluation(tmp_path, rows, GRADERS)))
        assert "line 1: settings" in problem
