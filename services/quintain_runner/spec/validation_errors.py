"""Turns validation errors of a user's file into sentences: the place, the error and how to fix it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from quintain.config.tree import format_path
from quintain.errors import ConfigError

#: The model at each place of a file, used to suggest known keys. ``"*"`` stands for any list item, and a `kind_tag` for
#: the kind that was selected there.
ModelsByPlace = Mapping[tuple[str, ...], type[BaseModel]]

#: The most errors that one message lists; further ones are only counted.
MAX_REPORTED_ERRORS = 20

_TYPE_MESSAGES = {
    "list_type": "it must be a list, such as [one, two]",
    "model_type": "it must be a map, such as {key: value}",
    "string_type": "not a text; put it in quotes",
}


def config_error(path: Path, messages: Sequence[str], *, more: int = 0) -> ConfigError:
    """One `ConfigError` with a line for each error of a file; ``more`` is the number of further errors that are not
    listed.
    """
    lines = [f"{path}: {message}" for message in messages]
    if more:
        lines.append(f"{path}: and {more} more")
    return ConfigError("\n".join(lines))


def validation_messages(error: ValidationError, models: ModelsByPlace) -> list[str]:
    """One sentence for each error of a validation, with its place; the invalid values are never shown.

    ``models`` are the models by place, for the suggestions about unknown keys.
    """
    return [_validation_message(detail, models) for detail in error.errors(include_url=False, include_input=False)]


def kind_tag(kind: str) -> str:
    """The tag of a kind in pydantic's error locations; it cannot be mistaken for a key and is removed from messages."""
    return f"<{kind}>"


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar known name, or else the list of all of them."""
    known = list(known)
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _validation_message(detail: ErrorDetails, models: ModelsByPlace) -> str:
    """One validation error as a sentence with its place."""
    parts = detail["loc"]
    if detail["type"] == "extra_forbidden":
        key = str(parts[-1])
        return _prefix_location(parts[:-1], f"unknown key {key!r}{suggestion(key, _known_keys(parts[:-1], models))}")
    if detail["type"] == "missing":
        return _prefix_location(parts[:-1], f"missing key '{parts[-1]}'")
    what = _TYPE_MESSAGES.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    return _prefix_location(parts, what.replace("Input should be", "it must be"))


def _prefix_location(parts: Sequence[str | int], what: str) -> str:
    """Put the place of an error in front of its message; kind tags are left out of the place."""
    shown = [part for part in parts if isinstance(part, int) or not _is_tag(part)]
    return f"{format_path(shown)}: {what}" if shown else what


def _is_tag(part: str) -> bool:
    """Whether a part of a place is a `kind_tag`."""
    return part.startswith("<") and part.endswith(">")


def _known_keys(parts: Sequence[str | int], models: ModelsByPlace) -> list[str]:
    """The valid keys of the model at a place, or an empty list if there is no model."""
    model = models.get(tuple("*" if isinstance(part, int) else part for part in parts))
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]
