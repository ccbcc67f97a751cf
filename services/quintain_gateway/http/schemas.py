"""Parses JSON bodies of other vendors' APIs: strict types, ``null`` as absent, unknown fields allowed. No I/O.

A setting that a call cannot carry does not cause an error, because clients send many of them. It is listed in a
response header, so that no evaluation relies on a setting that was ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from quintain.errors import BadRequest

#: So many names, and so much of each, are named in a header: they are a stranger's words.
MAX_LISTED_NAMES, MAX_NAME_LENGTH = 20, 60

#: Parts of a mistake's place that are a library's words for a type, and no field's name.
_PYDANTIC_TYPE_NAME = re.compile(r"str|bool|int|float|.*\W.*", re.DOTALL)


class RequestModel(BaseModel):
    """An object of a request."""

    model_config = ConfigDict(
        strict=True, extra="allow", frozen=True, allow_inf_nan=False, hide_input_in_errors=True, protected_namespaces=()
    )

    def unknown_fields(self, prefix: str = "", *, known: Iterable[str] = ()) -> set[str]:
        """The fields it was sent with that nobody here reads, with ``prefix`` before their names."""
        sent = {name for name, value in (self.model_extra or {}).items() if value is not None}
        return {f"{prefix}{name}" for name in sent - set(known)}


class InvalidField(BadRequest):
    """A field of the request is not what it should be. ``field_path`` names it, with dots."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


RequestModelT = TypeVar("RequestModelT", bound=RequestModel)


def validate_as(model: type[RequestModelT], value: object) -> RequestModelT:
    """The body as this model. Raises `InvalidField`, whose sentence names the field."""
    if not isinstance(value, Mapping):
        raise BadRequest("The body is not an object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise to_invalid_field(error) from None


def to_invalid_field(error: ValidationError, prefix: str = "") -> InvalidField:
    """The first mistake of a validation, in a part of the request that is at ``prefix``. It never shows a value."""
    first_error = error.errors(include_url=False, include_input=False)[0]
    field_path = _format_field_path(prefix, first_error["loc"])
    if first_error["type"] == "missing":
        return InvalidField(field_path, f"Missing required field: {field_path}")
    message = first_error["msg"].removeprefix("Value error, ")
    return InvalidField(field_path, f"{field_path}: {message}" if field_path else message)


def _format_field_path(prefix: str, location: Iterable[str | int]) -> str:
    parts = [prefix] if prefix else []
    for part in location:
        if isinstance(part, str) and _PYDANTIC_TYPE_NAME.fullmatch(part):
            break
        parts.append(str(part))
    return ".".join(parts)


def format_field_names(fields: Iterable[str]) -> str:
    """The fields' names as a header's value: in order, plain letters, so many at most."""
    names = sorted({re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", field[:MAX_NAME_LENGTH]) for field in fields})
    omitted_count = len(names) - MAX_LISTED_NAMES
    return ", ".join([*names[:MAX_LISTED_NAMES], *([f"and {omitted_count} more"] if omitted_count > 0 else [])])
