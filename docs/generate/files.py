"""The pages of the evaluation file and of the configuration, from the models that read them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from generate.markdown import code, from_docstring, table
from quintain.config.described_schema import DescribedSchema
from quintain.config.target_fields import NESTED_MODELS
from quintain.config.targets import TARGET_MODELS, QuotaConcurrency, QuotaConfig
from quintain.programs.sandbox import Sandbox
from quintain_runner.spec.asking_graders import RubricCriterion
from quintain_runner.spec.builtin_graders import ExpectedToolCall
from quintain_runner.spec.evaluation import DatasetSpec, EvaluationSpec
from quintain_runner.spec.graders import GRADER_KINDS, GraderCalls
from quintain_runner.spec.prompts import PromptMessage, PromptSpec

Fields = dict[str, dict[str, Any]]

#: Keys whose meaning has a page of its own.
_ELSEWHERE = {"settings": "The meaning of each is in the [table of parameters](../protocol/fields.md)."}


def evaluation_page() -> str:
    """Return the page of the evaluation file."""
    kinds = {name: _fields(model) for name, model in GRADER_KINDS.items()}
    return (
        "# The evaluation file\n\n"
        "`quintain schema eval` prints this as JSON schema; [evaluations](../evaluation.md) have the rules.\n\n"
        + _section("eval.yaml", EvaluationSpec)
        + _section("dataset", DatasetSpec)
        + _section("prompts: each", PromptSpec)
        + _section("prompts: each of messages", PromptMessage)
        + _kinds("grader", kinds, dict(GRADER_KINDS))
        + _section("graders: target", GraderCalls)
        + _section("graders: each of called", ExpectedToolCall)
        + _section("graders: each of rubric", RubricCriterion)
        + _section("graders and dataset: sandbox", Sandbox)
    )


def configuration_page() -> str:
    """Return the page of the configuration."""
    names = {model: [name for name, each in TARGET_MODELS.items() if each is model] for model in TARGET_MODELS.values()}
    models: dict[str, type[BaseModel]] = {", ".join(of): model for model, of in names.items()}
    kinds = {name: _fields(model) for name, model in models.items()}
    return (
        "# The configuration file\n\n"
        "`quintain.yaml` has `targets`: a map by name, or a list of `{name: …}`; and `quotas`, a map by name. Any "
        "value may be `${{ NAME }}` or `${{ NAME:-default }}`, read from the environment. `quintain schema config` "
        "prints this as JSON schema; [the guide](../configuration.md) has examples.\n\n"
        + _kinds("target", kinds, models)
        + "".join(_section([key for key in place if key != "*"][-1], model) for place, model in NESTED_MODELS.items())
        + _section("quotas: each", QuotaConfig)
        + _section("quotas: concurrency", QuotaConcurrency)
    )


def _kinds(noun: str, kinds: dict[str, Fields], models: dict[str, type[BaseModel]]) -> str:
    """Return a section with the keys of every kind, then one for each kind with its other keys."""
    first = next(iter(kinds.values()))
    common = {key: value for key, value in first.items() if all(one.get(key) == value for one in kinds.values())}
    text = f"## Every {noun}\n\n{_table(common)}"
    for name, fields in kinds.items():
        own = {key: value for key, value in fields.items() if key not in common}
        text += f"## {noun.capitalize()}: {name}\n\n{from_docstring(models[name].__doc__)}\n\n{_table(own)}"
    return text


def _section(title: str, model: type[BaseModel]) -> str:
    more = f"{_ELSEWHERE[title]}\n\n" if title in _ELSEWHERE else ""
    return f"## {title}\n\n{from_docstring(model.__doc__)}\n\n{more}{_table(_fields(model))}"


def _fields(model: type[BaseModel]) -> Fields:
    """The keys of a model, each with its JSON schema and whether it is required."""
    schema = model.model_json_schema(schema_generator=DescribedSchema)
    # The schema of a model that has models of its own kind is among its definitions.
    schema = schema if "properties" in schema else schema["$defs"][model.__name__]
    required = schema.get("required", [])
    return {key: {**value, "required": key in required} for key, value in schema["properties"].items()}


def _table(fields: Fields) -> str:
    rows = [
        (code(key), _type(field), from_docstring(field.get("description")), _default(field))
        for key, field in fields.items()
    ]
    return table(["key", "value", "meaning", "default"], rows)


def _default(field: dict[str, Any]) -> str:
    if field["required"]:
        return "required"
    value = field.get("default")
    return "" if value in (None, "", [], {}) else code(str(value).lower() if isinstance(value, bool) else value)


def _type(schema: dict[str, Any]) -> str:
    """Return what a key takes, in words."""
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return " or ".join(map(code, schema["enum"]))
    if "$ref" in schema:
        return "any value" if schema["$ref"].endswith("/JsonValue") else "a map"
    for word in ("anyOf", "oneOf"):
        if word in schema:
            kinds = [_type(one) for one in schema[word] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    return _plain_type(schema)


def _plain_type(schema: dict[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object":
        return "a map"
    words = {"integer": "whole number", "number": "number", "boolean": "`true` or `false`", "string": "text"}
    bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    limits = [f"{name} {schema[key]:,}" for key, name in bounds.items() if key in schema]
    return " ".join([words.get(schema.get("type", ""), "any value"), *limits])
