"""The JSON schemas for editors: what the commands take they allow, and what the commands refuse they refuse."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from generate.checkout import REPOSITORY, tracked
from quintain.config.loader import config_schema, load_config
from quintain.errors import ConfigError
from quintain_runner.spec.evaluation import evaluation_schema, load_evaluation

EVALUATION = jsonschema_rs.validator_for(evaluation_schema())
CONFIG = jsonschema_rs.validator_for(config_schema())
GRADERS = "graders: [{name: same, builtin: exact}]\n"


def allows(validator: jsonschema_rs.Validator, text: str) -> bool:
    return validator.is_valid(yaml.safe_load(text))


def blocks(page: str, key: str) -> list[str]:
    """The YAML of a page that has this key at its top."""
    found = re.findall(r"^```yaml\n(.*?)^```$", (REPOSITORY / page).read_text(), re.DOTALL | re.MULTILINE)
    return [block for block in found if re.search(rf"^{key}:", block, re.MULTILINE)]


def test_they_are_schemas() -> None:
    for schema in (evaluation_schema(), config_schema()):
        jsonschema_rs.meta.validate(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("path", tracked("examples/*/eval.yaml"), ids=lambda path: path.parent.name)
def test_every_example_is_what_the_schema_allows(path: Path) -> None:
    assert allows(EVALUATION, path.read_text())
    configurations = [file for file in tracked(f"{path.parent.relative_to(REPOSITORY)}/*.yaml") if file != path]
    assert configurations
    assert all(allows(CONFIG, file.read_text()) for file in configurations)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/run.md", "docs/evaluation.md", "docs/graders.md", "docs/judges.md", "docs/pairwise.md"]
)
def test_what_a_page_shows_is_what_the_schema_allows(page: str) -> None:
    shown = blocks(page, "graders")
    assert shown
    assert all(allows(EVALUATION, block if "dataset:" in block else f"dataset: c\n{block}") for block in shown)
    assert all(allows(CONFIG, block) for block in blocks(page, "targets") if "provider" in block)


@pytest.mark.parametrize(
    "text",
    [
        "dataset: cases.jsonl\n" + GRADERS,
        "dataset: {file: cases.csv, where: {lang: [en, de], level: 3, hard: true}, sample: 10, limit: 5}\n" + GRADERS,
        "dataset: {command: [python, cases.py], format: csv}\n" + GRADERS,
        "dataset: c\ngraders: [{name: a, function: 'judges:polite', config: {n: 1}, target: {max_calls: 0}}]",
        "dataset: c\ngraders: [{name: a, command: [x], target: true}]",
        "dataset: c\ngraders: [{name: a, command: [x], batch: stdin-lines, cwd: below}]",
        "dataset: c\ngraders: [{name: a, builtin: regex, pattern: x, ignore_case: true}]",
        "dataset: c\ngraders: [{name: a, builtin: numeric, tolerance: 0.5, take: only}]",
        "dataset: c\ngraders: [{name: a, builtin: json-schema, schema: {type: object}, fenced: true}]",
        "dataset: c\ngraders: [{name: a, builtin: json-schema, schema: answer.json}]",
        "dataset: c",
        "dataset: c\ngraders: [{builtin: contains, value: [a, 1], not: true}, {any: [{all: [{builtin: exact}]}]}]",
        "dataset: c\ngraders: [{name: a, builtin: llm-judge, prompt: p.md, show: [output], structured: true}]",
    ],
)
def test_an_evaluation_that_is_read_is_allowed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "eval.yaml"
    path.write_text(text)
    load_evaluation(path)
    assert allows(EVALUATION, text)


@pytest.mark.parametrize(
    "text",
    [
        GRADERS,
        "dataset: c\ngraders: []",
        "dataset: c\nrepeat: 2\n" + GRADERS,
        "dataset: {limit: 3}\n" + GRADERS,
        "dataset: {file: c, command: [d]}\n" + GRADERS,
        "dataset: {file: c, sample: 0}\n" + GRADERS,
        "dataset: c\nthreshold: 2\n" + GRADERS,
        "dataset: c\ngraders: [{name: a}]",
        "dataset: c\ngraders: [{name: a, builtin: same}]",
        "dataset: c\ngraders: [{name: a, builtin: exact, tolerance: 1}]",
        "dataset: c\ngraders: [{name: a, builtin: regex}]",
        "dataset: c\ngraders: [{name: a, builtin: exact, command: [x]}]",
        "dataset: c\ngraders: [{name: a, command: python judge.py}]",
        "dataset: c\ngraders: [{builtin: contains-json, any: []}]",
    ],
)
def test_an_evaluation_that_is_refused_is_not_allowed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "eval.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_evaluation(path)
    assert not allows(EVALUATION, text)


@pytest.mark.parametrize(
    "text",
    [
        "targets: {a: {provider: mock}}",
        "targets: [{name: a, provider: mock}, {name: b, provider: mock, delay_ms: 5}]",
        "targets: {a: {provider: mock, delay_ms: '${{ DELAY }}', max_concurrency: '${{ MANY:-8 }}'}}",
        "targets: {a: {provider: openai, model: '${{ MODEL }}', api_key: '${{ KEY }}', base_url: 'http://x/v1'}}",
        "targets: {a: {provider: command, command: [x, '{prompt_file}'], env: {A: '${{ B }}'}}}",
        "targets: {a: {provider: python, callable: 'bot:answer', judge_target: b}, b: {provider: mock}}",
    ],
)
def test_a_configuration_that_is_read_is_allowed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "quintain.yaml"
    path.write_text(text)
    load_config(path)
    assert allows(CONFIG, text)


@pytest.mark.parametrize(
    "text",
    [
        "targets: {}",
        "target: {a: {provider: mock}}",
        "targets: {a: {provider: mok}}",
        "targets: {a: {provider: mock, respnse: x}}",
        "targets: {'two words': {provider: mock}}",
        "targets: [{provider: mock}]",
        "targets: {a: {provider: mock, delay_ms: soon}}",
        "targets: {a: {provider: openai}}",
        f"targets: {{a: {{provider: openai, model: m, api_key: sk-{'x' * 30}}}}}",
    ],
)
def test_a_configuration_that_is_refused_is_not_allowed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "quintain.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_config(path)
    assert not allows(CONFIG, text)
