"""Prompts: templates of what is asked, each a column of its own."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain.graders import Case
from quintain.settings import read_settings
from quintain_runner.engine.preflight import inspect_evaluation
from quintain_runner.engine.requirements import case_requirements
from quintain_runner.engine.run_settings import RunOptions
from quintain_runner.plan.changes import input_fingerprint
from quintain_runner.plan.dataset import open_dataset
from quintain_runner.spec.evaluation import Evaluation, load_evaluation
from quintain_runner.spec.prompts import Prompt
from quintain_runner.spec.templates import TemplateError, parse_template
from support.evaluations import EXACT, Json, cases, write_evaluation

GRADERS: list[Json] = [{**EXACT}]

CASE = Case(
    id="7",
    question="Where is {{ id }}?",
    system_prompt="own",
    metadata={
        "topic": {"name": "Rom", "items": [1, 2], "gone": None},
        "n": [1, "é", None, 1.0, 10**30],
        "flag": True,
        "empty": None,
        "a-b": "dash",
        "lines": "a\r\nb\rc",
    },
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("plain { } }} text", "plain { } }} text"),
        ("{{id}}-{{ id }}", "7-7"),
        # Text is printed as it is, other values as JSON, also where they are joined.
        ("{{ topic.name }}, {{ flag }}", "Rom, true"),
        ("{{ n }}", f'[1, "é", null, 1.0, {10**30}]'),
        ("{{ 'x' ~ flag ~ n[:1] }}{{ [flag, 'a'] | join(';') }}", "xtrue[1]true;a"),
        ("{{ topic | tojson }}", '{"name": "Rom", "items": [1, 2], "gone": null}'),
        # A key of an object comes before the methods of Python's.
        ("{{ topic.items }}{{ case['a-b'] }}{{ case.topic.name }}", "[1, 2]dashRom"),
        ("{% for key, value in topic | items if value %}{{ loop.index }}{{ key }}{% endfor %}", "1name2items"),
        ("{{ id | upper }}{{ topic.name.lower() }}{{ 1 + 1 }}{# told to nobody #}", "7rom2"),
        ("{% if empty is defined %}a{% else %}b{% endif %}{{ empty | default('c') }}{{ topic.gone or 'd' }}", "bcd"),
        # What a value holds is no template.
        ("{{ question }}", "Where is {{ id }}?"),
        ("{{ '{{' }} {{ \"}}\" }} {{ '{%' }}{% raw %}{{ x }}{% endraw %}", "{{ }} {%{{ x }}"),
        ("\n{{\n id\n}}\n", "\n7\n"),
        ("a\r\n\rb\n{{ lines }}{{ '\r\n' }}{%\r\nif 1 %}\x1f{% endif %}\r", "a\r\n\rb\na\r\nb\rc\r\n\x1f\r"),
        ("<{{ '&' }}>", "<&>"),
        ("{{ '%03d' % 7 }}{{ '%(name)s' % topic }}{{ '%.2f' | format(n[3]) }}", "007Rom1.00"),
    ],
)
def test_a_template_is_jinja2_and_carries_texts_exactly(template: str, text: str) -> None:
    assert parse_template(template).render(CASE) == text


@pytest.mark.parametrize(
    "template",
    [
        *("{{ id", "{{}}", "{% if id %}", "{{{ id }}}}", "{{ id | nope }}", "{{ id | random }}", "{% do id %}"),
        *("{% include 'a' %}", "{% import 'a' as b %}", "{% from 'a' import b %}", "{% extends 'a' %}"),
    ],
)
def test_what_is_no_template_is_refused_by_line_with_the_mend(template: str) -> None:
    with pytest.raises(ValueError, match=r"line 3: .*{% raw %}"):
        parse_template(f"\r\n\n{template}")


@pytest.mark.parametrize(
    "template",
    [
        *("{{ nope }}", "{{ topic.nope }}", "{{ empty }}", "{{ topic.gone }}", "{{ expected }}", "{{ topic.copy }}"),
        *(
            "{{ n | map('string') }}",
            "{{ 1 / 0 }}",
            "{{ 1e308 * 10 }}",
            "{{ id() }}",
            "{{ [nope] }}",
            "{{ 'a' ~ nope }}",
        ),
    ],
)
def test_what_a_case_lacks_is_an_error_of_its_line(template: str) -> None:
    with pytest.raises(TemplateError, match="^the prompt p, line 3: "):
        parse_template(f"\n\n{template}", "the prompt p").render(CASE)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 2**25 }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set x %}{% for i in range(99999) %}{{ question * 1000 }}{% endfor %}{% endset %}",
        *("{{ question.__class__ }}", "{{ question | attr('__class__') }}", "{{ n.append(1) }}"),
    ],
)
def test_a_template_reaches_no_python_and_prints_no_more_than_a_request_holds(template: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match="^the prompt p, line 1, case '7': ") as refused:
            parse_template(template, "the prompt p").render(CASE)
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()
    assert not isinstance(refused.value, TemplateError)


def evaluation(folder: Path, prompts: object, rows: list[Json] | None = None) -> Evaluation:
    return load_evaluation(write_evaluation(folder, rows or cases(2), GRADERS, prompts=prompts))


def asked(prompt: Prompt) -> tuple[object, ...]:
    """The question, the messages and the system prompt."""
    case = prompt.apply(CASE)
    return case.question, case.messages and [(one.role, one.content) for one in case.messages], case.system_prompt


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
        ("text 7", None, "own"),
        ("Briefly: 7", None, "own"),
        (None, [("user", "chat 7")], "own"),
        ("Where is {{ id }}?", None, "be strict"),
        (None, [("assistant", "Rom")], "Briefly: 7"),
    ]


@pytest.mark.parametrize(
    ("prompts", "place"),
    [
        *(([], "prompts"), (["{{ id | nope }}"], "prompts[0]"), ([{"name": "a"}], "prompts[0]")),
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


def test_every_problem_of_a_template_is_an_error_with_its_file_line_and_cases(tmp_path: Path) -> None:
    (tmp_path / "brief.txt").write_bytes(b"\r\n\r\nBe brief:\r\n{{ topic.name }}{{ 5 / n }}\r\n")
    topics = {"a": ({}, 1), "b": ({"name": "x"}, 0), "c": ({"name": "x"}, 1)}
    rows: list[Json] = [{**cases(1)[0], "id": id_, "topic": topic, "n": n} for id_, (topic, n) in topics.items()]
    found = evaluation(tmp_path, ["file://brief.txt"], rows)
    (missing, division) = problems(found)
    assert "the prompt brief (brief.txt), line 4: 'dict object' has no attribute 'name'" in missing
    assert ("ids 'a'" in missing, "ids 'b'" in division) == (True, True)
    fine: list[object] = [{"name": "p", "user": "{{ question }}"}]
    assert problems(evaluation(tmp_path, fine, rows)) == []
    blank = [{**rows[0], "n": "  "}]
    assert "empty message" in str(problems(evaluation(tmp_path, ["{{ n }}"], blank)))
    assert problems(evaluation(tmp_path, ["{{ question }}" + "x" * 1024 * 1024])), "no request may be so large"
    # A case needs a question only where a prompt asks it.
    bare: list[Json] = [{"id": "a", "city": "Rome", "expected": "Italy"}]
    assert problems(evaluation(tmp_path, ["Where is {{ city }}?"], bare)) == []
    (problem,) = problems(evaluation(tmp_path, ["Where is {{ city }}?", {"system": "be brief"}], bare))
    assert "question" in problem
    case = Case(id="c", question="q", metadata={"topic": {"name": "x"}, "n": 1})
    assert found.prompts[0].apply(case).question == "Be brief:\r\nx5.0"


def test_the_settings_of_a_case_are_checked_and_part_of_its_input(tmp_path: Path) -> None:
    def input_of(**fields: object) -> str:
        return input_fingerprint(Case.model_validate({"id": "a", "question": "q", **fields}))

    assert input_of() == input_of(settings=None)
    assert len({input_of(), input_of(settings={"temperature": 0.5}), input_of(settings={"temperature": 0})}) == 3
    for settings in ({"temprature": 1}, {"max_tokens": 0}, "hot"):
        rows: list[Json] = [{"id": "a", "question": "q", "expected": "q", "settings": settings}]
        (problem,) = problems(load_evaluation(write_evaluation(tmp_path, rows, GRADERS)))
        assert "line 1: settings" in problem


async def test_graders_whose_templates_a_case_does_not_fill_are_errors_of_the_check(tmp_path: Path) -> None:
    (tmp_path / "quintain.yaml").write_text("targets: {bot: {provider: mock}}")
    (tmp_path / "judge.md").write_text("Judge.\n{{ topic.name }} {{ output }}")
    (tmp_path / "broken.md").write_text("Judge.\n{{ topic")
    judge: Json = {"builtin": "llm-judge", "judge_target": "bot"}
    rubric: list[Json] = [{"id": "fit", "text": "{{ fit }}"}]
    graders: list[Json] = [
        {**judge, "name": "own", "prompt": "judge.md", "rubric": rubric},
        {**judge, "name": "bad", "prompt": "broken.md"},
        {"name": "pair", "builtin": "pairwise", "against": "all", "judge_target": "bot", "prompt": "judge.md"},
    ]
    rows: list[Json] = [{"id": "a", "question": "q", "topic": {}}, {"id": "b", "question": "q", "topic": {"name": "x"}}]
    path = write_evaluation(tmp_path, rows, graders)
    found = await inspect_evaluation(RunOptions(path=path, output=tmp_path / "out"), read_settings({}))
    told = "\n".join(found.problems)
    assert "the grader own, criterion fit, line 1: 'fit' is undefined in 2 of 2 cases (ids 'a', 'b')" in told
    assert "broken.md: line 2: " in told
    assert "the grader pair, prompt, line 2: 'dict object' has no attribute 'name' in 1 of 2 cases (ids 'a')" in told
    assert "the grader pair, prompt, line 2: 'output' is undefined in 1 of 2 cases (ids 'b')" in told
