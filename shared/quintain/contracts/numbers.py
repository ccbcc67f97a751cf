"""Models in which true and false are no numbers; pydantic by itself takes them for 1 and 0."""

from __future__ import annotations

from typing import Any, cast

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

#: The parts of a schema that are schemas: those of items, those that are mappings by name, and all.
_ITEMS, _BY_NAME = {"items_schema", "values_schema"}, {"fields", "choices"}
_PARTS = {"schema", *_ITEMS, *_BY_NAME}


def _refuse(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("number_expected", "Input should be a number, not true or false")
    return value


_CHECK = {"type": "no-info", "function": _refuse}


def _without_booleans(schema: Any, *, is_item: bool = False) -> Any:
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
