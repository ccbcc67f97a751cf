"""Parses JSON bodies of other vendors' APIs: strict types, ``null`` as absent, unknown fields kept. No I/O.

An unknown field is passed on with the settings of the call, for its target's provider to refuse or ignore by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from quintain.errors import BadRequest

#: The response header that names what a call was made without.
IGNORED_HEADER = "x-quintain-ignored"

#: The maximum number and length of names in the header: they come from the client.
MAX_LISTED_NAMES, MAX_NAME_LENGTH = 20, 60

#: Parts of a pydantic error location that name a type and not a field.
_PYDANTIC_TYPE_NAME = re.compile(r"str|bool|int|float|.*\W.*", re.DOTALL)


class RequestModel(BaseModel):
    """Base class of the objects in a request body: strict types, unknown fields kept."""

    model_config = ConfigDict(
        strict=True, extra="allow", frozen=True, allow_inf_nan=False, hide_input_in_errors=True, protected_namespaces=()
    )

    def unknown_fields(self, prefix: str = "", *, known: Iterable[str] = ()) -> set[str]:
        """Return the names of fields with a value that are neither in the model nor in ``known``, behind ``prefix``."""
        sent = {name for name, value in (self.model_extra or {}).items() if value is not None}
        return {f"{prefix}{name}" for name in sent - set(known)}


class InvalidField(BadRequest):
    """A field of the request is not valid. ``field`` is its path, with dots."""

    def __init__(self, field: str, message: str) -> None:
        """Create the error for the field at the path ``field``, such as ``messages.0.content``."""
        super().__init__(message)
        self.field = field


RequestModelT = TypeVar("RequestModelT", bound=RequestModel)


def validate_as(model: type[RequestModelT], value: object, path: str = "") -> RequestModelT:
    """Validate a parsed body, or the part of it at this path, as this model.

    Raises `BadRequest` if it is not an object, and `InvalidField`, which names the field, if it does not fit the
    model.
    """
    if not isinstance(value, Mapping):
        raise BadRequest("The body is not an object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise to_invalid_field(error, path) from None


def to_invalid_field(error: ValidationError, prefix: str = "") -> InvalidField:
    """Return the first error of a validation as an `InvalidField`. ``prefix`` is the path of the validated object.

    The message never contains a value from the request.
    """
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
    """Format field names as a header value: sorted, other characters replaced by ``?``, at most `MAX_LISTED_NAMES`."""
    names = sorted({re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", field[:MAX_NAME_LENGTH]) for field in fields})
    omitted_count = len(names) - MAX_LISTED_NAMES
    return ", ".join([*names[:MAX_LISTED_NAMES], *([f"and {omitted_count} more"] if omitted_count > 0 else [])])
