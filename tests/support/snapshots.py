"""What must not move, held against a recorded file: JSON beside the tests, one file a subject.

`make test ARGS=tests/unit/snapshots` compares. To record again what was changed on purpose::

    QUINTAIN_RECORD_SNAPSHOTS=1 make test ARGS=tests/unit/snapshots
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from quintain.settings import environment

RECORD_VARIABLE = "QUINTAIN_RECORD_SNAPSHOTS"

#: Keys of a schema or an API document whose text is prose: it may be reworded.
_PROSE = {"description", "summary", "title"}

#: Keys of a schema or an API document whose value is a map by name.
_NAMED = {"$defs", "properties", "schemas"}

_LINE_LENGTH = 140

_KINDS = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    type(None): "null",
    dict: "object",
    list: "array",
}


def hold(recorded: Path, content: object) -> None:
    """Compare with the recorded file, or write it where recording was asked for."""
    text = _json_text(content) + "\n"
    if environment().get(RECORD_VARIABLE):
        recorded.parent.mkdir(exist_ok=True)
        recorded.write_text(text)
    moved = list(
        difflib.unified_diff(recorded.read_text().splitlines(), text.splitlines(), "recorded", "now", lineterm="", n=6)
    )
    assert not moved, "\n".join([f"{recorded.name} has moved:", *moved])


def _json_text(node: object, indent: int = 0) -> str:
    """JSON with each value on one line that fits there, so that a diff shows one line for each key, option or field."""
    line = json.dumps(node, ensure_ascii=False, sort_keys=True)
    if len(line) + indent <= _LINE_LENGTH or not isinstance(node, dict | list) or not node:
        return line
    inner, outer = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(node, list):
        return f"[{inner}" + f",{inner}".join(_json_text(one, indent + 1) for one in node) + f"{outer}]"
    values = (f"{json.dumps(key, ensure_ascii=False)}: {_json_text(node[key], indent + 1)}" for key in sorted(node))
    return f"{{{inner}" + f",{inner}".join(values) + f"{outer}}}"


def outline(schema: Any) -> Any:
    """A JSON schema or an API document without its prose, and what a value may be as a text: ``string | null``."""
    if isinstance(schema, list):
        return [outline(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    # Below these keys stand names, which may be words of a schema too.
    brief: dict[str, Any] = {
        key: {name: outline(one) for name, one in value.items()} if key in _NAMED else outline(value)
        for key, value in schema.items()
        if not (key in _PROSE and isinstance(value, str))
    }
    for word in ("anyOf", "oneOf"):
        if all(isinstance(one, str) for one in brief.get(word, [None])):
            brief["type"] = " | ".join(brief.pop(word))
    if "$ref" in brief:
        brief["type"] = brief.pop("$ref").rpartition("/")[2]
    if "enum" in brief:
        brief["type"] = " or ".join(map(str, brief.pop("enum")))
    if "type" not in brief or any(isinstance(value, dict | list) for value in brief.values()):
        return brief
    return " ".join([brief.pop("type"), *(f"{key}={value}" for key, value in sorted(brief.items()))])


def fields_of_values(*values: object) -> object:
    """The keys of these JSON documents, each with its types: ``{"totals": {"calls": "number"}}``."""
    if not any(isinstance(value, dict | list) and value for value in values):
        return " | ".join(sorted({_KINDS[type(value)] for value in values}))
    fields: dict[str, list[object]] = {}
    for value in values:
        if isinstance(value, dict) and value:
            for key, one in value.items():
                fields.setdefault(key, []).append(one)
        elif isinstance(value, list) and value:
            fields.setdefault("[]", []).extend(value)
        else:
            fields.setdefault("", []).append(value)
    return _joined({key: fields_of_values(*found) for key, found in fields.items()})


def fields_of_model(model: type[BaseModel]) -> object:
    """The fields of a message as it is written, each with its JSON types; no class is named."""
    schema = model.model_json_schema(mode="serialization", by_alias=True)
    return _fields(schema, schema.get("$defs", {}), ())


def _fields(node: dict[str, Any], defs: dict[str, Any], above: tuple[str, ...]) -> object:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in above:
            return "as above"
        node, above = {**defs[name], **{key: one for key, one in node.items() if key != "$ref"}}, (*above, name)
    required, fields = node.get("required", ()), {}
    for key, one in node.get("properties", {}).items():
        fields[f"{key}{'' if key in required else '?'}"] = _fields(one, defs, above)
    for key, name in (("additionalProperties", "*"), ("items", "[]")):
        if isinstance(node.get(key), dict):
            fields[name] = _fields(node[key], defs, above)
    choices = [one for word in ("anyOf", "oneOf") for one in node.get(word, ())]
    for one in choices:
        below = _fields(one, defs, above)
        fields |= {key: value for key, value in below.items() if key} if isinstance(below, dict) else {}
    kinds = " | ".join(sorted([_kind(one) for one in choices] or [_kind(node)]))
    return _joined({**({} if kinds in {"array", "object"} else {"": kinds}), **fields}) if fields else kinds


def _joined(fields: dict[str, object]) -> dict[str, object]:
    """The fields, with the items of an array under the name of the array."""
    arrays = {key: value for key, value in fields.items() if isinstance(value, dict) and value.keys() == {"[]"}}
    others = {key: value for key, value in fields.items() if key not in arrays}
    return {**others, **_joined({f"{key}[]": value["[]"] for key, value in arrays.items()})} if arrays else others


def _kind(node: dict[str, Any]) -> str:
    if "enum" in node or "const" in node:
        return " or ".join(json.dumps(one) for one in node.get("enum", [node.get("const")]))
    return str(node.get("type", "object" if "$ref" in node else "any"))
