"""Turns validation errors of a user's file into sentences: the place, the error and how to fix it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from quintain.config.tree import format_path
from quintain.errors import ConfigError

#: Which model stands at which place, so that an unknown key's neighbours are known; ``"*"`` is any list item, and
#: what `kind_tag` makes is the kind that was chosen there.
ModelsByPlace = Mapping[tuple[str, ...], type[BaseModel]]

#: How many mistakes one error tells of; the rest is a number.
MAX_REPORTED_ERRORS = 20

_TYPE_MESSAGES = {
    "list_type": "it must be a list, such as [one, two]",
    "model_type": "it must be a map, such as {key: value}",
    "string_type": "not a text; put it in quotes",
}


def config_error(path: Path, messages: Sequence[str], *, more: int = 0) -> ConfigError:
    """One error for all the mistakes of a file, a line each; ``more`` of them were counted and not told."""
    lines = [f"{path}: {message}" for message in messages]
    if more:
        lines.append(f"{path}: and {more} more")
    return ConfigError("\n".join(lines))


def validation_messages(error: ValidationError, models: ModelsByPlace) -> list[str]:
    """Every mistake of a validation, one sentence each; never the value itself."""
    return [_validation_message(detail, models) for detail in error.errors(include_url=False, include_input=False)]


def kind_tag(kind: str) -> str:
    """The name of a kind as a part of a place: no key looks like it, and no sentence shows it."""
    return f"<{kind}>"


def suggestion(name: str, known: Iterable[str]) -> str:
    """The mend of a misspelt name, to end a sentence with: the nearest known one, or all of them."""
    known = list(known)
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _validation_message(detail: ErrorDetails, models: ModelsByPlace) -> str:
    parts = detail["loc"]
    if detail["type"] == "extra_forbidden":
        key = str(parts[-1])
        return _prefix_location(parts[:-1], f"unknown key {key!r}{suggestion(key, _known_keys(parts[:-1], models))}")
    if detail["type"] == "missing":
        return _prefix_location(parts[:-1], f"missing key '{parts[-1]}'")
    what = _TYPE_MESSAGES.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    return _prefix_location(parts, what.replace("Input should be", "it must be"))


def _prefix_location(parts: Sequence[str | int], what: str) -> str:
    shown = [part for part in parts if isinstance(part, int) or not _is_tag(part)]
    return f"{format_path(shown)}: {what}" if shown else what


def _is_tag(part: str) -> bool:
    return part.startswith("<") and part.endswith(">")


def _known_keys(parts: Sequence[str | int], models: ModelsByPlace) -> list[str]:
    model = models.get(tuple("*" if isinstance(part, int) else part for part in parts))
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]
