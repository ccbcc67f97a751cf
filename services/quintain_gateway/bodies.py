"""Reading a body of somebody else's API, pure: types as that API has them, ``null`` as absent, unknown fields let in.

What a request asks and a call cannot carry is not refused, because clients send all sorts of things; it is named in a
header of the answer, so that nobody evaluates a setting that was never set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from quintain.errors import BadRequest

#: So many names, and so much of each, are named in a header: they are a stranger's words.
MOST_NAMES, MOST_LETTERS = 20, 60

#: Parts of a mistake's place that are a library's words for a type, and no field's name.
_TYPE = re.compile(r"str|bool|int|float|.*\W.*", re.DOTALL)


class Body(BaseModel):
    """An object of a request."""

    model_config = ConfigDict(
        strict=True, extra="allow", frozen=True, allow_inf_nan=False, hide_input_in_errors=True, protected_namespaces=()
    )

    def unread(self, where: str = "", *, known: Iterable[str] = ()) -> set[str]:
        """The fields it was sent with that nobody here reads, with ``where`` before their names."""
        sent = {name for name, value in (self.model_extra or {}).items() if value is not None}
        return {f"{where}{name}" for name in sent - set(known)}


class BadField(BadRequest):
    """A field of the request is not what it should be. ``field`` names it, with dots."""

    def __init__(self, field: str, mistake: str) -> None:
        super().__init__(mistake)
        self.field = field


Read = TypeVar("Read", bound=Body)


def read_as(model: type[Read], value: object) -> Read:
    """The body as this model. Raises `BadField`, whose sentence names the field."""
    if not isinstance(value, Mapping):
        raise BadRequest("The body is not an object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise mistake_of(error) from None


def mistake_of(error: ValidationError, where: str = "") -> BadField:
    """The first mistake of a validation, in a part of the request that is at ``where``. It never shows a value."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = _field(where, first["loc"])
    if first["type"] == "missing":
        return BadField(field, f"Missing required field: {field}")
    what = first["msg"].removeprefix("Value error, ")
    return BadField(field, f"{field}: {what}" if field else what)


def _field(where: str, place: Iterable[str | int]) -> str:
    parts = [where] if where else []
    for part in place:
        if isinstance(part, str) and _TYPE.fullmatch(part):
            break
        parts.append(str(part))
    return ".".join(parts)


def named(fields: Iterable[str]) -> str:
    """The fields' names as a header's value: in order, plain letters, so many at most."""
    names = sorted({re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", field[:MOST_LETTERS]) for field in fields})
    more = len(names) - MOST_NAMES
    return ", ".join([*names[:MOST_NAMES], *([f"and {more} more"] if more > 0 else [])])
