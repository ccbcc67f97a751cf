"""The strings and numbers of messages: names, ids, text that ledgers can hold, numbers that JSON can express."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, Field, GetCoreSchemaHandler, Strict, StringConstraints
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from quintain.contracts.headers import DEADLINE_HEADER
from quintain.errors import BadRequest

#: Target names (``docs/protocol/routing.md``): as routing keys and parts of queue names they have no other characters.
TARGET_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"

_TARGET_NAME = re.compile(TARGET_NAME_PATTERN)

#: What no request id may hold: no ledger keeps U+0000, and UTF-8 cannot write half of a surrogate pair.
_NOT_IN_REQUEST_IDS = re.compile("[\0\ud800-\udfff]")

#: The longest deadline of a call, in seconds from now: 12 hours. A queue keeps a message for a day.
MAX_DEADLINE_SECONDS = 43_200.0


def require_possible_deadline(seconds: float, field: str = DEADLINE_HEADER) -> None:
    """Check how far ahead a deadline is. Raises `BadRequest`, which names the field and the limit."""
    if seconds > MAX_DEADLINE_SECONDS:
        raise BadRequest(
            f"{field}: {seconds:.0f} s ahead, and a call lasts {MAX_DEADLINE_SECONDS:.0f} s (12 hours) at most"
        )


#: How many of something.
Count = Annotated[int, Field(ge=0)]

#: Numbers that only Quintain's own services write: no text is read as one, and no call checks that it is no boolean.
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]

TargetName = Annotated[str, StringConstraints(pattern=TARGET_NAME_PATTERN)]

#: The longest identifier, in bytes, and the longest routing key of AMQP.
MAX_ID_LENGTH, MAX_ROUTING_KEY_BYTES = 200, 255

#: Error messages show at most so many characters of a name chosen by a caller.
MAX_DISPLAY_LENGTH = 100


def _check_no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("it holds U+0000, which no ledger keeps")
    return text


#: Text that every ledger can store: PostgreSQL does not allow U+0000.
Text = Annotated[str, AfterValidator(_check_no_nul)]


def _check_id(text: str) -> str:
    if len(text.encode()) > MAX_ID_LENGTH:
        raise ValueError(f"it has more than {MAX_ID_LENGTH} bytes")
    return _check_no_nul(text)


def _check_routing_key(text: str) -> str:
    if len(text.encode()) > MAX_ROUTING_KEY_BYTES:
        raise ValueError(f"it has more than {MAX_ROUTING_KEY_BYTES} bytes")
    return text


#: An identifier of a worker, an attempt or a session; short, because ledgers index it, and routing keys contain it.
Id = Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH), AfterValidator(_check_id)]

#: The name of a grader, by which usage is told.
MAX_GRADER_LENGTH = 64
GraderId = Annotated[Text, StringConstraints(min_length=1, max_length=MAX_GRADER_LENGTH)]

#: A routing key that another process tells, to be published with.
RoutingKey = Annotated[str, AfterValidator(_check_routing_key)]

#: The idempotency key within a session: 1 to 128 characters, none of them U+0000.
RequestId = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(_check_no_nul)]


def is_target_name(name: str) -> bool:
    """Whether a target may have this name."""
    return _TARGET_NAME.fullmatch(name) is not None


def sanitize_request_id(text: str) -> str:
    """Return the text if it is a valid request id, else a similar valid one under which a refusal can be stored."""
    return _NOT_IN_REQUEST_IDS.sub("?", text[:128]) or "-"


def shorten(name: str) -> str:
    """Return a name shortened to `MAX_DISPLAY_LENGTH` characters, for error messages."""
    return name if len(name) <= MAX_DISPLAY_LENGTH else f"{name[:MAX_DISPLAY_LENGTH]}…"


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode; a model cut off in the middle of an emoji produces one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


#: The parts of a schema that are schemas: those of items, those that are mappings by name, and all.
_ITEMS, _BY_NAME = {"items_schema", "values_schema"}, {"fields", "choices"}
_PARTS = {"schema", *_ITEMS, *_BY_NAME}


def _refuse(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("number_expected", "Input should be a number, not true or false")
    return value


_CHECK = {"type": "no-info", "function": _refuse}


def _without_booleans(schema: Any, *, is_item: bool = False) -> Any:
    if schema.get("type") in {"int", "float"} and schema.get("strict"):
        return schema
    if schema.get("type") in {"int", "float"}:
        # Of the items of a list there may be thousands: they are checked without a call for each.
        return {**schema, "strict": True} if is_item else core_schema.no_info_before_validator_function(_refuse, schema)
    if schema.get("function") == _CHECK:
        return schema
    changed = dict(schema)
    for key in _PARTS & schema.keys():
        part, items = schema[key], is_item or key in _ITEMS
        if isinstance(part, list):
            changed[key] = [_without_booleans(each, is_item=items) if isinstance(each, dict) else each for each in part]
        elif key in _BY_NAME:
            changed[key] = {name: _without_booleans(each, is_item=items) for name, each in part.items()}
        else:
            changed[key] = _without_booleans(part, is_item=items)
    return changed


class NumberModel(BaseModel):
    """Base class of models whose integers and floats refuse booleans."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", _without_booleans(handler(source)))


def non_finite_path(value: object, path: str = "") -> str | None:
    """Return the place of a NaN or infinite number in a JSON value, such as ``tools.0.minimum``, or None.

    ``path`` is the place of the value itself, and begins the result.
    """
    remaining = [(path, value)]
    while remaining:
        place, item = remaining.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return place
        prefix = f"{place}." if place else ""
        if isinstance(item, dict):
            remaining += [(f"{prefix}{key}", member) for key, member in item.items()]
        elif isinstance(item, list):
            remaining += [(f"{prefix}{index}", member) for index, member in enumerate(item)]
    return None
