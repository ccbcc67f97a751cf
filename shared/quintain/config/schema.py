"""The JSON schema of the configuration file, for editors, derived from the target models. No I/O."""

from __future__ import annotations

from pydantic import JsonValue
from pydantic.json_schema import models_json_schema

from quintain.config.targets import TARGET_MODELS
from quintain.contracts.strings import TARGET_NAME_PATTERN

DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: A reference to an environment variable in place of a number, boolean or enum value.
_REFERENCE: JsonValue = {"type": "string", "pattern": r"\$\{\{\s*[A-Za-z_][A-Za-z0-9_]*\s*(:-.*)?\}\}"}

#: A secret must be a reference.
_SECRET: JsonValue = {"description": "A reference to the environment.", "anyOf": [_REFERENCE, {"type": "null"}]}

Schema = dict[str, JsonValue]


def config_schema() -> Schema:
    """Return the JSON schema of ``quintain.yaml``: targets as a map, or as AgentV's list of ``{name: …}``."""
    _, schema = models_json_schema([(model, "validation") for model in TARGET_MODELS.values()])
    definitions: dict[str, Schema] = schema["$defs"]
    kinds = {model.__name__ for model in TARGET_MODELS.values()}
    models = {
        # What JSON can hold has no properties of its own.
        name: _model_schema(definition, is_target=name in kinds) if definition else definition
        for name, definition in definitions.items()
    }
    named = {f"Named{name}": _with_name_property(models[name]) for name in sorted(kinds)}
    return {
        "$schema": DIALECT,
        "title": "A configuration of quintain",
        "type": "object",
        "required": ["targets"],
        "additionalProperties": False,
        "properties": {
            "targets": {
                "description": "The targets: a map by name, or a list of {name: …}.",
                "anyOf": [
                    {
                        "type": "object",
                        "minProperties": 1,
                        "propertyNames": {"pattern": TARGET_NAME_PATTERN},
                        "additionalProperties": {"oneOf": _refs_to(sorted(kinds))},
                    },
                    {"type": "array", "minItems": 1, "items": {"oneOf": _refs_to(sorted(named))}},
                ],
            }
        },
        "$defs": {**models, **named},
    }


def _refs_to(names: list[str]) -> list[JsonValue]:
    return [{"$ref": f"#/$defs/{name}"} for name in names]


def _model_schema(definition: Schema, *, is_target: bool) -> Schema:
    properties = definition.get("properties")
    assert isinstance(properties, dict), "a model has properties"
    return {
        **definition,
        "properties": {
            name: value
            if is_target and name == "provider"
            else _SECRET
            if name == "api_key"
            else _allow_reference(value)
            for name, value in properties.items()
        },
    }


def _allow_reference(value: JsonValue) -> JsonValue:
    """Allow a reference as an alternative to a value that is not a string."""
    if not isinstance(value, dict) or value.get("type") in {"string", "array", "object"} or "$ref" in value:
        return value
    outer: Schema = {key: value[key] for key in ("title", "description", "default") if key in value}
    inner: Schema = {key: item for key, item in value.items() if key not in outer}
    return {**outer, "anyOf": [inner, _REFERENCE]}


def _with_name_property(model: Schema) -> Schema:
    properties, required = model["properties"], model.get("required", [])
    assert isinstance(properties, dict), "a model has properties"
    assert isinstance(required, list), "required is a list"
    name: JsonValue = {"type": "string", "pattern": TARGET_NAME_PATTERN}
    return {**model, "properties": {"name": name, **properties}, "required": ["name", *required]}
