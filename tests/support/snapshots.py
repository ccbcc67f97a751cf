"""What must not move, held against a recorded file: JSON beside the tests, one file a subject.

`make test ARGS=tests/unit/snapshots` compares. To record again what was changed on purpose::

    QUINTAIN_RECORD_SNAPSHOTS=1 make test ARGS=tests/unit/snapshots
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from quintain.settings import environment

RECORD_VARIABLE = "QUINTAIN_RECORD_SNAPSHOTS"

#: Keys of a schema or an API document whose text is prose: it may be reworded.
PROSE = {"description", "summary", "title"}

_KINDS = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}


def hold(recorded: Path, content: object) -> None:
    """Compare with the recorded file, or write it where recording was asked for."""
    text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if environment().get(RECORD_VARIABLE):
        recorded.parent.mkdir(exist_ok=True)
        recorded.write_text(text)
    moved = list(
        difflib.unified_diff(recorded.read_text().splitlines(), text.splitlines(), "recorded", "now", lineterm="", n=6)
    )
    assert not moved, "\n".join([f"{recorded.name} has moved:", *moved])


def without_prose(node: Any) -> Any:
    """A JSON schema or an API document without its descriptions, summaries and titles."""
    if isinstance(node, Mapping):
        return {
            key: without_prose(value) for key, value in node.items() if not (key in PROSE and isinstance(value, str))
        }
    return [without_prose(one) for one in node] if isinstance(node, list) else node


def fields_of_values(*values: object) -> dict[str, list[str]]:
    """The path of every value in these JSON documents, each with its types: ``{"totals.calls": ["number"]}``."""
    found: dict[str, set[str]] = {}
    for value in values:
        for path, kind in _leaves(value, ""):
            found.setdefault(path, set()).add(kind)
    return {path: sorted(kinds) for path, kinds in sorted(found.items())}


def fields_of_model(model: type[BaseModel]) -> dict[str, str]:
    """The path of every field of a message as it is written, each with its JSON types; no class is named."""
    schema = model.model_json_schema(mode="serialization", by_alias=True)
    return dict(sorted(_fields(schema, schema.get("$defs", {}), "", ())))


def _leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if not value:
            yield path, "object"
        for key, one in value.items():
            yield from _leaves(one, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        if not value:
            yield path, "array"
        for one in value:
            yield from _leaves(one, f"{path}[]")
    else:
        yield path, _KINDS[type(value)]


def _fields(node: dict[str, Any], defs: dict[str, Any], path: str, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in above:
            yield path, "as above"
            return
        node, above = {**defs[name], **{key: one for key, one in node.items() if key != "$ref"}}, (*above, name)
    required = node.get("required", ())
    for key, one in node.get("properties", {}).items():
        yield from _fields(one, defs, f"{path}.{key}{'' if key in required else '?'}".lstrip("."), above)
    if isinstance(node.get("additionalProperties"), dict):
        yield from _fields(node["additionalProperties"], defs, f"{path}.*".lstrip("."), above)
    if isinstance(node.get("items"), dict):
        yield from _fields(node["items"], defs, f"{path}[]", above)
    choices = [one for word in ("anyOf", "oneOf") for one in node.get(word, ())]
    for one in choices:
        if "$ref" in one or "properties" in one or "items" in one:
            yield from _fields(one, defs, path, above)
    kinds = [_kind(one) for one in choices] or [_kind(node)]
    if path:
        yield f"{path}:", " | ".join(sorted(kinds))


def _kind(node: dict[str, Any]) -> str:
    if "enum" in node or "const" in node:
        return " or ".join(json.dumps(one) for one in node.get("enum", [node.get("const")]))
    return str(node.get("type", "object" if "$ref" in node else "any"))
