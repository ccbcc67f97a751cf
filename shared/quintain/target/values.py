"""Serialises the values of events: each arrives as what it was. JSON knows too few types for that.

A value of another type than JSON's is an object with the key ``$type``. Objects of unknown classes arrive as their
``repr``, as superred writes them to its files. Nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from quintain.contracts.remote_target import TagPath
from quintain.target.serialization import safe_str
from quintain.target.tag_registry import Tag, tag_path

#: The key that marks an encoded value.
TYPE_KEY: Final = "$type"

#: The types that JSON has, by exact class.
_JSON_TYPES: Final = frozenset({str, int, float, bool, type(None)})

_COLLECTIONS: Final[dict[str, Callable[[list[Any]], object]]] = {"tuple": tuple, "set": set, "frozenset": frozenset}

#: Types written as one string: how each is written and read.
_TEXTUAL: Final[dict[type, tuple[Callable[[Any], str], Callable[[str], object]]]] = {
    bytes: (lambda value: base64.b64encode(value).decode(), lambda text: base64.b64decode(text, validate=True)),
    bytearray: (
        lambda value: base64.b64encode(value).decode(),
        lambda text: bytearray(base64.b64decode(text, validate=True)),
    ),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
    timedelta: (
        lambda value: f"{value.days} {value.seconds} {value.microseconds}",
        lambda text: timedelta(*map(int, text.split())),
    ),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
}
_TEXTUAL_BY_NAME: Final = {cls.__name__: read for cls, (_, read) in _TEXTUAL.items()}


def encode_value(value: object) -> str:
    """Return any value as ASCII JSON text. Never raises: a value that contains itself becomes its repr."""
    try:
        return json.dumps(value if type(value) in _JSON_TYPES else _to_json(value))
    except (ValueError, TypeError, RecursionError):
        return json.dumps(safe_str(value, repr))


def decode_value(text: str, get_tag: Callable[[TagPath], Tag]) -> object:
    """Read text of `encode_value`; ``get_tag`` returns this side's tag of a path. Raises `ValueError`, `TypeError`."""
    if f'"{TYPE_KEY}"' not in text:
        return json.loads(text)
    return json.loads(text, object_hook=lambda fields: _from_json(fields, get_tag) if TYPE_KEY in fields else fields)


def _to_json(value: object) -> object:
    cls = type(value)
    if cls in _JSON_TYPES:
        return value
    if cls in _TEXTUAL:
        return {TYPE_KEY: cls.__name__, "value": _TEXTUAL[cls][0](value)}
    if isinstance(value, dict):
        if TYPE_KEY not in value and all(type(key) is str for key in value):
            return {key: _to_json(item) for key, item in value.items()}
        return {TYPE_KEY: "dict", "value": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple | set | frozenset):
        items = [_to_json(item) for item in value]
        kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
        return items if kind is list else {TYPE_KEY: kind.__name__, "value": items}
    return _other_to_json(value)


def _other_to_json(value: object) -> object:
    for kind in (str, int, float):
        # An enumeration's member, or another subclass.
        if isinstance(value, kind):
            return kind(value)
    if type(value).__name__ == "SecurityDomainTag":
        tag: Any = value
        return {TYPE_KEY: "tag", "value": tag_path(tag)}
    return safe_str(value, repr)


def _from_json(fields: dict[str, Any], get_tag: Callable[[TagPath], Tag]) -> object:
    name, value = fields[TYPE_KEY], fields.get("value")
    if name in _TEXTUAL_BY_NAME and isinstance(value, str):
        return _TEXTUAL_BY_NAME[name](value)
    if isinstance(value, list):
        if name in _COLLECTIONS:
            return _COLLECTIONS[name](value)
        if name == "dict":
            return dict(value)
        if name == "tag":
            return get_tag([str(part) for part in value])
    raise ValueError(f"A value of type {str(name)[:100]!r} cannot be read here: install the same release on both sides")
