"""The evaluation file: what it says, and how it says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_runner.graders.builtin import build_validator
from quintain_runner.spec.builtin_graders import ExactGrader
from quintain_runner.spec.evaluation import DatasetSpec, Evaluation, load_evaluation
from quintain_runner.spec.graders import CommandGrader
from quintain_runner.untrusted import compile_pattern, pattern_problem

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
    assert isinstance(judge, CommandGrader)
    assert evaluation.spec.targets == ["gpt4o", "local"]
    assert (evaluation.spec.max_calls, evaluation.spec.repeats, evaluation.spec.threshold) == (20000, 2, 0.8)
    assert (judge.command, judge.judge_target, judge.target.max_calls, judge.timeout_seconds) == (
        ["python", "judge.py"],
        "claude_base",
        10,
        30,
    )
    assert same == ExactGrader(name="same", builtin="exact")


def test_a_graders_target_may_be_true_as_in_agentv(tmp_path: Path) -> None:
    (judge,) = load(tmp_path, "dataset: c\ngraders: [{name: a, command: [x], target: true}]").spec.graders
    assert isinstance(judge, CommandGrader)
    assert (judge.target.max_calls, judge.has_explicit_limit) == (50, False)
    assert evaluation_errors(tmp_path, "dataset: c\ngraders: [{name: a, command: [x], target: false}]")


def test_what_a_grader_leaves_out_has_agentvs_defaults(tmp_path: Path) -> None:
    (judge,) = load(tmp_path, "dataset: c\ngraders: [{name: a, command: [x]}]").spec.graders
    assert isinstance(judge, CommandGrader)
    assert (judge.target.max_calls, judge.timeout_seconds, judge.cwd, judge.batch) == (50, 120, None, None)


def test_the_dataset_is_found_beside_the_file_and_the_run_is_named_after_it(tmp_path: Path) -> None:
    evaluation = load(tmp_path, WHOLE)
    assert evaluation.spec.dataset == DatasetSpec(file="cases.jsonl")
    assert evaluation.folder == tmp_path
    assert evaluation.name == "eval"


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
    assert "unknown key 'thresold'; did you mean 'threshold'?" in told
    assert "repeats: it must be greater than or equal to 1" in told
    assert "graders[0]: unknown key 'comand'; did you mean 'command'?" in told
    assert "graders[0].target: unknown key 'max_call'; did you mean 'max_calls'?" in told


def test_a_key_that_resembles_nothing_gets_the_known_ones(tmp_path: Path) -> None:
    (told,) = evaluation_errors(tmp_path, WHOLE + "zzz: 1\n")
    assert told.startswith("unknown key 'zzz'; known: dataset, targets, prompts, max_calls")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("graders: [{name: a, builtin: exact}]", "missing key 'dataset'"),
        ("dataset: {file: c, command: [d]}\ngraders: [{name: a, builtin: exact}]", "dataset: give one of file"),
        ("dataset: {limit: 3}\ngraders: [{name: a, builtin: exact}]", "dataset: give one of file"),
        ("dataset: {file: c, limt: 3}\ngraders: [{name: a, builtin: exact}]", "dataset: unknown key 'limt';"),
        ("dataset: {file: c, sample: 0}\ngraders: [{name: a, builtin: exact}]", "dataset.sample: it must be greater"),
        ("dataset: [c]\ngraders: [{name: a, builtin: exact}]", "dataset: it must be a map"),
        ("dataset: c\ngraders: []", "graders: List should have at least 1 item"),
        ("dataset: c\ngraders: [{name: a}]", "graders[0]: give one of command"),
        ("dataset: c\ngraders: [{name: a, builtin: exact, command: [x]}]", "graders[0]: give one of command"),
        ("dataset: c\ngraders: [{name: a, builtin: same}]", "graders[0].builtin: it must be 'exact', 'contains',"),
        ("dataset: c\ngraders: [{name: a, command: python judge.py}]", "graders[0].command: it must be a list"),
        ("dataset: c\ngraders: [{name: a, builtin: exact, pattern: x}]", "graders[0]: unknown key 'pattern'; known:"),
        ("dataset: c\ngraders: [{name: a, builtin: regex}]", "graders[0]: missing key 'pattern'"),
        (
            "dataset: c\ngraders: [{name: a, builtin: regex, pattern: a(b}]",
            "graders[0]: 'a(b' is not a valid regular expression",
        ),
        ("dataset: c\ngraders: [{name: a, builtin: numeric, tolerence: 1}]", "did you mean 'tolerance'?"),
        ("dataset: c\ngraders: [{name: a, builtin: numeric, take: any}]", "graders[0].take: it must be 'first',"),
        ("dataset: c\ngraders: [{name: a, builtin: json-schema}]", "graders[0]: missing key 'schema'"),
        ("dataset: c\ngraders: [{name: a, builtin: json-schema, schema: {}, schem: 1}]", "did you mean 'schema'?"),
        (
            "dataset: c\ngraders: [{name: a, builtin: llm-judge}]",
            "graders[0]: give prompt, a file with the judge's instructions, or rubric",
        ),
        ("dataset: c\ngraders: [{name: a, builtin: llm-judge, prompt: p, show: [question]}]", "it leaves out output"),
        ("dataset: c\ngraders: [{name: a, builtin: llm-judge, prompt: p, show: [outptu]}]", "mean it by 'outptu'"),
        ("dataset: c\ngraders: [{name: a, function: judges.polite}]", "graders[0].function: write it as module:name"),
        ("dataset: c\ngraders: [{name: a, command: [x], batch: lines}]", "it must be 'stdin-lines'"),
        ("dataset: c\ngraders: [exact]", "graders[0]: it must be a map"),
        ("dataset: c\ngraders: [{name: a, builtin: exact}, {name: a, builtin: exact}]", "named twice: a"),
        (f"dataset: c\ngraders: [{RUBRIC}, {{name: a · b, builtin: exact}}]", "named twice: a · b"),
        ("dataset: c\ntargets: [b, b]\ngraders: [{name: a, builtin: exact}]", "targets: named twice: b"),
        ("dataset: c\nthreshold: 1.5\ngraders: [{name: a, builtin: exact}]", "less than or equal to 1"),
        ("dataset: c\nmax_calls: -1\ngraders: [{name: a, builtin: exact}]", "greater than or equal to 0"),
        (
            "dataset: c\nmax_cost_usd: 0\ngraders: [{name: a, builtin: exact}]",
            "max_cost_usd: it must be greater than 0",
        ),
        ("dataset: c\nmax_cost_usd: .nan\ngraders: [{name: a, builtin: exact}]", "max_cost_usd: it must be"),
        ("dataset: c\nmax_cost_usd: 1.0e+400\ngraders: [{name: a, builtin: exact}]", "max_cost_usd: it must be"),
        ("dataset: c\nmax_cost_usd: 25$\ngraders: [{name: a, builtin: exact}]", "max_cost_usd: it must be"),
        ("dataset: c\nmax_calls: yes\ngraders: [{name: a, builtin: exact}]", "a valid integer"),
        ("dataset: c\ndataset: d\ngraders: [{name: a, builtin: exact}]", "'dataset' is given twice"),
        ("- a list", "it must be a map"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    assert any(sentence in told for told in evaluation_errors(tmp_path, text))


def test_what_is_not_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    (told,) = evaluation_errors(tmp_path, "dataset: c\ngraders: [")
    assert "line 2" in told
    assert "not YAML" in told


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read"):
        load_evaluation(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("pattern", "character", "rest"),
    [
        ("a(b", 2, "(b"),
        ("(a)(b(c)", 4, "(b(c)"),
        ("[z-a]", 1, "[z-a]"),
        ("*a", 1, "*a"),
        ("\\p{L}(", 6, "("),
        ("(?<n>a))", 8, ")"),
        ("caf\u00e9[", 5, "["),
    ],
)
def test_a_broken_pattern_is_refused_with_the_character_from_which_it_cannot_be_read(
    pattern: str, character: int, rest: str
) -> None:
    assert pattern_problem(pattern) == (
        f"{pattern!r} is not a valid regular expression of JSON Schema (ECMA 262): it cannot be read from character "
        f"{character} on ({rest!r})"
    )
    for ignore_case in (False, True):
        with pytest.raises(ValueError, match=f"from character {character} on"):
            compile_pattern(pattern, ignore_case=ignore_case)


def test_a_broken_pattern_in_a_json_schema_is_refused_with_its_place_and_character() -> None:
    with pytest.raises(ConfigError, match=r"properties\.a\.pattern: 'a\(b' .* from character 2 on \('\(b'\)"):
        build_validator({"properties": {"a": {"pattern": "a(b"}}}, Path())


def test_a_broken_pattern_that_is_long_is_refused_without_a_search_for_the_character() -> None:
    assert pattern_problem("a" * 1000 + "(").endswith("a…' is not a valid regular expression of JSON Schema (ECMA 262)")
