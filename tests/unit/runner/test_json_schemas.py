"""The JSON schemas for editors: what the commands take they allow, and what the commands refuse they refuse."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from generate.checkout import REPOSITORY, tracked
from quintain.config.loader import config_schema, load_config
from quintain.errors import ConfigError
from quintain_runner.plan.dataset import open_dataset
from quintain_runner.plan.trials import choose_targets
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


@pytest.mark.parametrize("path", tracked("examples/*/eval.yaml"), ids=lambda path: path.parent.name)
def test_every_example_is_what_the_schema_allows_and_its_files_fit_together(path: Path) -> None:
    assert allows(EVALUATION, path.read_text())
    evaluation = load_evaluation(path)
    if (path.parent / "quintain.yaml").exists():
        configured = load_config(path.parent / "quintain.yaml").targets
        assert choose_targets(evaluation, list(configured))
        assert {getattr(one, "judge_target", None) for one in evaluation.spec.graders} <= {*configured, None}
    if evaluation.spec.dataset.file is not None:
        assert open_dataset(evaluation, path.parent, {}).cases
    configurations = [file for file in tracked(f"{path.parent.relative_to(REPOSITORY)}/*.yaml") if file != path]
    assert configurations
    assert all(allows(CONFIG, file.read_text()) for file in configurations)


@pytest.mark.parametrize("page", ["README.md", "docs/evaluation.md", "docs/graders.md"])
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
    """Those that are refused are in test_evaluation_file.py."""
    (tmp_path / "eval.yaml").write_text(text)
    load_evaluation(tmp_path / "eval.yaml")
    assert allows(EVALUATION, text)


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("targets: {a: {provider: mock}}", True),
        ("targets: [{name: a, provider: mock}, {name: b, provider: mock, delay_ms: 5}]", True),
        ("targets: {a: {provider: mock, delay_ms: '${{ DELAY }}', max_concurrency: '${{ MANY:-8 }}'}}", True),
        (
            "targets: {a: {provider: openai, model: '${{ MODEL }}', api_key: '${{ KEY }}', base_url: 'http://x/v1'}}",
            True,
        ),
        ("targets: {a: {provider: command, command: [x, '{prompt_file}'], env: {A: '${{ B }}'}}}", True),
        ("targets: {a: {provider: python, callable: 'bot:answer', judge_target: b}, b: {provider: mock}}", True),
        ("targets: {}", False),
        ("target: {a: {provider: mock}}", False),
        ("targets: {a: {provider: mok}}", False),
        ("targets: {a: {provider: mock, respnse: x}}", False),
        ("targets: {'two words': {provider: mock}}", False),
        ("targets: [{provider: mock}]", False),
        ("targets: {a: {provider: mock, delay_ms: soon}}", False),
        ("targets: {a: {provider: openai}}", False),
        (f"targets: {{a: {{provider: openai, model: m, api_key: sk-{'x' * 30}}}}}", False),
    ],
)
def test_a_configuration_is_allowed_where_it_is_read(tmp_path: Path, text: str, is_read: bool) -> None:
    (tmp_path / "quintain.yaml").write_text(text)
    with contextlib.nullcontext() if is_read else pytest.raises(ConfigError):
        load_config(tmp_path / "quintain.yaml")
    assert allows(CONFIG, text) is is_read
