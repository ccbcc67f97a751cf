"""The evaluation file: what it says, and how it says what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from quintain.errors import ConfigError
from quintain_runner.graders.builtin import build_validator
from quintain_runner.spec.builtin_graders import ExactGrader
from quintain_runner.spec.evaluation import DatasetSpec, Evaluation, evaluation_schema, load_evaluation
from quintain_runner.untrusted import compile_pattern, pattern_problem

EVALUATION = jsonschema_rs.validator_for(evaluation_schema())
#: What the schema for editors cannot know: what stands in two places, what is in a text, what is no YAML.
SAID_BY_NO_SCHEMA = ("twice", "line 2", "regular expression", "leaves out", "mean it by", "give prompt", "module:name")
RUBRIC = "{name: a, builtin: llm-judge, rubric: [{id: b, text: x}]}"

WHOLE = """
dataset: cases.jsonl
targets: [gpt4o, local]
max_calls: 20000
repeats: 2
threshold: 0.8
graders:
  - name: correct
    command: ["python", "judge.py"]
    judge_target: claude_base
    target: {max_calls: 10}
    timeout_seconds: 30
  - name: same
    builtin: exact
"""


def load(tmp_path: Path, text: str) -> Evaluation:
    path = tmp_path / "eval.yaml"
    path.write_text(text)
    return load_evaluation(path)


def evaluation_errors(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    prefix = f"{tmp_path / 'eval.yaml'}: "
    lines = error.value.message.splitlines()
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


def test_the_protocols_own_example_is_read(tmp_path: Path) -> None:
    evaluation = load(tmp_path, WHOLE)
    judge, same = evaluation.spec.graders
    assert evaluation.spec.dataset == DatasetSpec(file="cases.jsonl")
    assert (evaluation.folder, evaluation.name, evaluation.spec.targets) == (tmp_path, "eval", ["gpt4o", "local"])
    assert (evaluation.spec.max_calls, evaluation.spec.repeats, evaluation.spec.threshold.score) == (20000, 2, 0.8)
    assert (judge.command, judge.judge_target, judge.timeout_seconds) == (["python", "judge.py"], "claude_base", 30)
    assert (judge.target.max_calls, judge.has_explicit_limit) == (10, True)
    assert same == ExactGrader(name="same", builtin="exact")
    # What a grader leaves out has AgentV's defaults, and its target may be true as there.
    for graders in ("[{name: a, command: [x]}]", "[{name: a, command: [x], target: true}]"):
        (judge,) = load(tmp_path, f"dataset: c\ngraders: {graders}").spec.graders
        assert (judge.target.max_calls, judge.timeout_seconds, judge.cwd, judge.batch) == (50, 120, None, None)
        assert not judge.has_explicit_limit


def test_all_mistakes_are_told_at_once_each_with_its_place_and_the_nearest_known_key(tmp_path: Path) -> None:
    told = evaluation_errors(
        tmp_path,
        """
dataset: cases.jsonl
thresold: 0.5
repeats: 0
graders:
  - name: a
    comand: [judge]
    target: {max_call: 1}
""",
    )
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read"):
        load_evaluation(tmp_path / "missing.yaml")
    assert "unknown key 'thresold'; did you mean 'threshold'?" in told
    assert "repeats: it must be greater than or equal to 1" in told
    assert "graders[0]: unknown key 'comand'; did you mean 'command'?" in told
    assert "graders[0].target: unknown key 'max_call'; did you mean 'max_calls'?" in told


def of_graders(*graders: str) -> str:
    """An evaluation with these graders."""
    return f"dataset: c\ngraders: [{', '.join(graders)}]"


def of_settings(*settings: str) -> str:
    """An evaluation with these settings and a grader."""
    return "\n".join([*settings, "graders: [{name: a, builtin: exact}]"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- a list", "it must be a map"),
        ("dataset: c\ngraders: [", "line 2"),
        (WHOLE + "zzz: 1\n", "unknown key 'zzz'; known: dataset, targets, prompts, max_calls"),
        (of_settings(), "missing key 'dataset'"),
        (of_settings("dataset: {file: c, command: [d]}"), "dataset: give one of file"),
        (of_settings("dataset: {limit: 3}"), "dataset: give one of file"),
        (of_settings("dataset: {file: c, limt: 3}"), "dataset: unknown key 'limt';"),
        (of_settings("dataset: {file: c, sample: 0}"), "dataset.sample: it must be greater"),
        (of_settings("dataset: [c]"), "dataset: it must be a map"),
        (of_settings("dataset: c", "dataset: d"), "'dataset' is given twice"),
        (of_settings("dataset: c", "repeat: 2"), "did you mean 'repeats'?"),
        (of_settings("dataset: c", "targets: [b, b]"), "targets: named twice: b"),
        (of_settings("dataset: c", "threshold: 1.5"), "less than or equal to 1"),
        (of_settings("dataset: c", "max_calls: -1"), "greater than or equal to 0"),
        (of_settings("dataset: c", "max_calls: yes"), "a valid integer"),
        (of_settings("dataset: c", "max_cost_usd: 0"), "max_cost_usd: it must be greater than 0"),
        *(
            (of_settings("dataset: c", f"max_cost_usd: {cost}"), "max_cost_usd: it must be")
            for cost in (".nan", "1.0e+400", "25$")
        ),
        (of_graders(), "graders: List should have at least 1 item"),
        (of_graders("exact"), "graders[0]: it must be a map"),
        (of_graders("{name: a}"), "graders[0]: give one of command"),
        (of_graders("{name: a, builtin: exact, command: [x]}"), "graders[0]: give one of command"),
        (of_graders("{name: a, builtin: same}"), "graders[0].builtin: it must be 'exact', 'contains',"),
        (of_graders("{name: a, builtin: exact, pattern: x}"), "graders[0]: unknown key 'pattern'; known:"),
        (of_graders("{name: a, builtin: regex}"), "graders[0]: missing key 'pattern'"),
        (of_graders("{name: a, builtin: regex, pattern: a(b}"), "graders[0]: 'a(b' is not a valid regular expression"),
        (of_graders("{name: a, builtin: numeric, tolerence: 1}"), "did you mean 'tolerance'?"),
        (of_graders("{name: a, builtin: numeric, take: any}"), "graders[0].take: it must be 'first',"),
        (of_graders("{name: a, builtin: json-schema}"), "graders[0]: missing key 'schema'"),
        (of_graders("{name: a, builtin: json-schema, schema: {}, schem: 1}"), "did you mean 'schema'?"),
        (of_graders("{builtin: contains-json, any: []}"), "graders[0]"),
        (of_graders("{name: a, builtin: llm-judge}"), "graders[0]: give prompt, a file with the judge's"),
        (of_graders("{name: a, builtin: llm-judge, prompt: p, show: [question]}"), "it leaves out output"),
        (of_graders("{name: a, builtin: llm-judge, prompt: p, show: [outptu]}"), "mean it by 'outptu'"),
        (of_graders("{name: a, function: judges.polite}"), "graders[0].function: write it as module:name"),
        (of_graders("{name: a, command: python judge.py}"), "graders[0].command: it must be a list"),
        (of_graders("{name: a, command: [x], batch: lines}"), "it must be 'stdin-lines'"),
        (of_graders("{name: a, command: [x], target: false}"), "graders[0].target"),
        (of_graders("{name: a, builtin: exact}", "{name: a, builtin: exact}"), "named twice: a"),
        (of_graders(RUBRIC, "{name: a · b, builtin: exact}"), "named twice: a · b"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    assert any(sentence in told for told in evaluation_errors(tmp_path, text))
    if not any(part in sentence for part in SAID_BY_NO_SCHEMA):
        assert not EVALUATION.is_valid(yaml.safe_load(text))


CRITERION = {"id": "right", "text": "It names Rome."}
JURY = {"builtin": "llm-judge", "prompt": "p.md", "judge_targets": ["ada", "bob", "cyd"]}


@pytest.mark.parametrize(
    "grader",
    [
        # What expects nothing, or too much.
        *({"builtin": name} for name in ("tool-calls", "tokens")),
        *(
            {"builtin": "tool-calls", "called": ["a"], **more}
            for more in ({"called_field": "b"}, {"not_called": ["a"]})
        ),
        {"builtin": "tool-calls", "max": 1, "order": "in"},
        {"builtin": "tool-calls", "called": [{"tool": "a", "matching": {"b": "("}}]},
        *({"builtin": "latency", "max_ms": 0}, {"builtin": "cost", "max_usd": -1}),
        # A judge that could not judge.
        {"builtin": "llm-judge", "rubric": [CRITERION, CRITERION]},
        *(
            {"builtin": "llm-judge", "rubric": [{**CRITERION, **wrong}]}
            for wrong in ({"weight": 0}, {"id": "a b"}, {"text": ""})
        ),
        *(
            {"builtin": "llm-judge", "prompt": "p.md", **wrong}
            for wrong in ({"show": ["messages", "output"]}, {"max_show_characters": 0})
        ),
        # A jury that could not come to a verdict.
        *({**JURY, "judge_targets": names} for names in (["ada"], [], ["ada", "bob", "ada"])),
        *({**JURY, **wrong} for wrong in ({"judge_target": "ada"}, {"min_votes": 4}, {"min_votes": 0}, {"vote": "x"})),
        *({**JURY, "judge_targets": None, **alone} for alone in ({"vote": "mean"}, {"min_votes": 2})),
    ],
)
def test_a_grader_that_could_give_no_verdict_is_refused(tmp_path: Path, grader: dict[str, object]) -> None:
    told = evaluation_errors(tmp_path, json.dumps({"dataset": "c", "graders": [{"name": "g", **grader}]}))
    assert told[0].startswith("graders[0]")


@pytest.mark.parametrize(
    ("pattern", "character", "rest"),
    [
        *(("a(b", 2, "(b"), ("(a)(b(c)", 4, "(b(c)"), ("[z-a]", 1, "[z-a]"), ("*a", 1, "*a"), ("\\p{L}(", 6, "(")),
        *(("(?<n>a))", 8, ")"), ("caf\u00e9[", 5, "[")),
    ],
)
def test_a_broken_pattern_is_refused_with_the_character_where_it_breaks(
    pattern: str, character: int, rest: str
) -> None:
    assert f"from character {character} on ({rest!r})" in pattern_problem(pattern)
    with pytest.raises(ValueError, match=f"from character {character} on"):
        compile_pattern(pattern)
    with pytest.raises(ConfigError, match=rf"properties\.a\.pattern: .* from character {character} on"):
        build_validator({"properties": {"a": {"pattern": pattern}}}, Path())
    # In a long one it is not searched for.
    assert "character" not in pattern_problem("a" * 1000 + "(")
