"""The base class of all wire messages: frozen, camelCase in JSON, ``null`` equals absent, unknown keys ignored."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError

from quintain.contracts.strings import shorten
from quintain.errors import BadRequest


class Message(BaseModel):
    """One thing said, or a part of it. Optional fields default to None, so that ``null`` and absent are one."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        # What does not fit is somebody's text: no error shows it, and so no log does.
        hide_input_in_errors=True,
    )

    def to_wire(self) -> bytes:
        """The message as JSON, UTF-8, without absent fields. Raises `BadRequest` for text that is no Unicode."""
        try:
            # What pydantic's ``model_dump_json`` does, which makes text of it.
            return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_none=True)
        except PydanticSerializationError:
            raise BadRequest("The message holds text that is no Unicode: half of a surrogate pair") from None

    @classmethod
    def from_wire(cls, body: bytes | str) -> Self:
        """The message of these bytes.

        Raises `BadRequest` with a sentence that names the field.
        """
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise BadRequest(describe_validation_error(error)) from None

    @classmethod
    def unchecked(cls, **fields: object) -> Self:
        """The message of these fields, all of them, unchecked: what pydantic's ``model_construct`` does, in a third of
        the time, for what is made by the thousand from values that were read before."""
        message = cls.__new__(cls)
        object.__setattr__(message, "__dict__", fields)
        object.__setattr__(message, "__pydantic_fields_set__", set(fields))
        object.__setattr__(message, "__pydantic_extra__", None)
        object.__setattr__(message, "__pydantic_private__", None)
        return message


def describe_validation_error(error: ValidationError) -> str:
    """The first mistake of a validation as one sentence: where, and what; never the value itself."""
    first = error.errors(include_url=False, include_input=False)[0]
    # A part of it may be a key that the caller chose.
    location = shorten(".".join(str(part) for part in first["loc"]))
    if first["type"] == "json_invalid":
        return f"The body is not JSON: {first['ctx']['error']}"
    if first["type"] == "missing":
        return f"Missing required field: {location}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{location}: {message}" if location else message
