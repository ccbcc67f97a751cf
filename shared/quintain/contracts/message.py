"""The base class of all wire messages, and the sizes of their bodies (``docs/protocol/README.md``)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError

from quintain.contracts.values import NumberModel, shorten
from quintain.errors import BadRequest

#: The largest request of a session that was opened without a limit of its own.
DEFAULT_REQUEST_BYTES = 1024 * 1024

#: The largest reply of a session whose limit is not higher, without the repetition of its text.
DEFAULT_REPLY_BYTES = 8 * 1024 * 1024

#: A larger reply is compressed by its worker, and is read from the ledger by itself.
LARGE_REPLY_BYTES = 64 * 1024

#: The largest reply after compression, in bytes, that is kept for replays.
MAX_STORED_REPLY_BYTES = 1024 * 1024

#: The largest body of one message, and so of a reply: by default RabbitMQ 4 refuses larger messages.
MAX_BODY_BYTES = 16 * 1024 * 1024

#: The largest reply that is kept for replays: with the JSON around it, it must fit into one message.
MAX_REPLAY_BYTES = MAX_BODY_BYTES - 4096

#: The largest body of a metadata operation; 10,000 request ids of 128 ASCII characters are 1.3 MB.
MAX_OPERATION_BYTES = 2 * 1024 * 1024

#: The prefetch of each queue of the metadata service that clients can write to: with messages of `MAX_BODY_BYTES`, 128
#: MiB of one queue are in the service's memory at most.
CLIENT_QUEUE_PREFETCH = 8

#: A session's limit: of its requests, and of its replies where that is more than `DEFAULT_REPLY_BYTES`.
BodyBytes = Annotated[int, Field(gt=0, le=MAX_BODY_BYTES)]


#: How many unknown keys an error names.
MAX_NAMED_KEYS = 5

#: Set what pydantic keeps of a message: a frozen model refuses assignments, and `object.__setattr__` is slower.
_SET_FIELDS, _SET_NAMES, _SET_EXTRA, _SET_PRIVATE = (
    vars(BaseModel)[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class Message(NumberModel):
    """Base class of all wire messages; optional fields default to None, so that ``null`` equals absent."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        # What validates and writes a message is built at its first use: a command uses few of them.
        defer_build=True,
        # Invalid input is a caller's text: no error message, and thus no log, may contain it.
        hide_input_in_errors=True,
    )

    def to_wire(self, without: set[str] | None = None) -> bytes:
        """Return the message as UTF-8 JSON without absent fields and those of these names.

        Raises `BadRequest` for invalid Unicode.
        """
        try:
            # The same as pydantic's ``model_dump_json``, but without the detour through a string.
            return self.__pydantic_serializer__.to_json(self, exclude=without, by_alias=True, exclude_none=True)
        except PydanticSerializationError:
            raise BadRequest("The message holds text that is no Unicode: half of a surrogate pair") from None

    @classmethod
    def from_wire(cls, body: bytes | str) -> Self:
        """Parse and validate a message. Raises `BadRequest` with a sentence that names the invalid field."""
        try:
            message: Self = cls.__pydantic_validator__.validate_json(body)  # `model_validate_json` without its options
        except ValidationError as error:
            raise BadRequest(cls.describe(error)) from None
        return message

    @classmethod
    def describe(cls, error: ValidationError) -> str:
        """Return in one sentence why a message of this class is invalid."""
        return describe_validation_error(error)

    def with_fields(self, **fields: object) -> Self:
        """Return a copy with these fields, which are not validated.

        Does what pydantic's ``model_copy`` does in a fraction of the time, for classes without private attributes.
        """
        copy = object.__new__(type(self))
        _SET_FIELDS(copy, {**self.__dict__, **fields})
        _SET_PRIVATE(copy, None)
        _SET_NAMES(copy, self.__pydantic_fields_set__ | fields.keys())
        _SET_EXTRA(copy, self.__pydantic_extra__)
        return copy

    @classmethod
    def unchecked(cls, **fields: object) -> Self:
        """Create a message from all of its fields without validation.

        Does what pydantic's ``model_construct`` does in a third of the time, for messages created by the thousand from
        values that were validated before.
        """
        message = object.__new__(cls)
        _SET_FIELDS(message, fields)
        _SET_NAMES(message, _field_names(cls))
        _SET_EXTRA(message, None)
        _SET_PRIVATE(message, None)
        return message


@cache
def _field_names(kind: type[Message]) -> set[str]:
    """Return the names of a message's fields; one set for all messages of a kind: nothing changes it."""
    return set(kind.model_fields)


class StrictMessage(Message):
    """Base class of administrative requests: unknown keys are refused, because ignoring one would grant more."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def describe(cls, error: ValidationError) -> str:
        """Return in one sentence why a message of this class is invalid; unknown keys with the nearest known ones."""
        return describe_unknown_keys(error, cls) or describe_validation_error(error)


def describe_unknown_keys(error: ValidationError, model: type[BaseModel]) -> str:
    """Return one sentence that names each unknown key and the nearest known one; empty if no key is unknown."""
    details = error.errors(include_url=False, include_input=False)
    unknown = [str(detail["loc"][-1]) for detail in details if detail["type"] == "extra_forbidden"]
    known = [field.alias or name for name, field in model.model_fields.items()]
    return unknown_keys_message(unknown, known)


def unknown_keys_message(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return one sentence that names each unknown key and the nearest known one; empty if no key is unknown."""
    by_lower_case = {key.lower(): key for key in known}
    sentences = []
    for key in unknown:
        nearest = get_close_matches(key.lower(), by_lower_case, n=1)
        known_keys = ", ".join(by_lower_case.values())
        hint = f"did you mean {by_lower_case[nearest[0]]!r}?" if nearest else f"known: {known_keys}"
        sentences.append(f"unknown key {shorten(key)!r}; {hint}")
    return ". ".join(sentences[:MAX_NAMED_KEYS])


def describe_validation_error(error: ValidationError) -> str:
    """Return a validation's first error as one sentence: the field and the reason, never the value."""
    first = error.errors(include_url=False, include_input=False)[0]
    # A part of the location may be a key chosen by the caller.
    location = shorten(".".join(str(part) for part in first["loc"]))
    if first["type"] == "json_invalid":
        return f"The body is not JSON: {first['ctx']['error']}"
    if first["type"] == "missing":
        return f"Missing required field: {location}"
    if first["type"] == "union_tag_invalid":  # pydantic's message has the value
        return f"{location}: {first['ctx']['discriminator']} must be one of {first['ctx']['expected_tags']}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{location}: {message}" if location else message
