"""Says in sentences what is wrong in a file that a user wrote, each with its place in the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from quintain.config.secrets import format_path
from quintain.errors import ConfigError

#: The model at each place of a file, used to suggest known keys. ``"*"`` stands for any list item, and a `kind_tag` for
#: the kind that was selected there.
ModelsByPlace = Mapping[tuple[str, ...], type[BaseModel]]

_TYPE_MESSAGES = {
    "bool_type": "it must be true or false",
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


def validation_messages(error: ValidationError, models: ModelsByPlace, *, within: Sequence[str] = ()) -> list[str]:
    """One sentence for each error of a validation, with its place; the invalid values are never shown.

    ``models`` are the models by place, for the suggestions about unknown keys. ``within`` is where in the file the
    validated value stands.
    """
    details = error.errors(include_url=False, include_input=False)
    return [
        _prefix_location((*within, *place), what) for place, what in (_mistake(detail, models) for detail in details)
    ]


def kind_tag(kind: str) -> str:
    """The tag of a kind in pydantic's error locations; it cannot be mistaken for a key and is removed from messages."""
    return f"<{kind}>"


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar known name, or else the list of all of them."""
    known = list(known)
    return did_you_mean(name, known) or f"; known: {', '.join(known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar known name, or nothing."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _mistake(detail: ErrorDetails, models: ModelsByPlace) -> tuple[Sequence[str | int], str]:
    """The place of one validation error, and what is wrong there."""
    parts = detail["loc"]
    if detail["type"] == "extra_forbidden":
        key = str(parts[-1])
        return parts[:-1], f"unknown key {key!r}{suggestion(key, _known_keys(parts[:-1], models))}"
    if detail["type"] == "missing":
        return parts[:-1], f"missing key '{parts[-1]}'"
    what = _TYPE_MESSAGES.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    return parts, what.replace("Input should be", "it must be")


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
