"""Mistakes in a file that a person wrote, as sentences: where, what, and the mend. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from quintain.config.tree import place
from quintain.errors import ConfigError

#: Which model stands at which place, so that an unknown key's neighbours are known; ``"*"`` is any list item, and
#: what `tagged` makes is the kind that was chosen there.
Models = Mapping[tuple[str, ...], type[BaseModel]]

#: How many mistakes one error tells of; the rest is a number.
MOST_TOLD = 20

_WORDS = {
    "list_type": "it must be a list, such as [one, two]",
    "model_type": "it must be a map, such as {key: value}",
    "string_type": "not a text; put it in quotes",
}


def refusal(path: Path, mistakes: Sequence[str], *, more: int = 0) -> ConfigError:
    """One error for all the mistakes of a file, a line each; ``more`` of them were counted and not told."""
    told = [f"{path}: {mistake}" for mistake in mistakes]
    if more:
        told.append(f"{path}: and {more} more")
    return ConfigError("\n".join(told))


def sentences(error: ValidationError, models: Models) -> list[str]:
    """Every mistake of a validation, one sentence each; never the value itself."""
    return [_sentence(detail, models) for detail in error.errors(include_url=False, include_input=False)]


def tagged(kind: str) -> str:
    """The name of a kind as a part of a place: no key looks like it, and no sentence shows it."""
    return f"<{kind}>"


def nearest(word: str, known: Iterable[str]) -> str:
    """The mend of a misspelt name, to end a sentence with: the nearest known one, or all of them."""
    known = list(known)
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _sentence(detail: ErrorDetails, models: Models) -> str:
    parts = detail["loc"]
    if detail["type"] == "extra_forbidden":
        key = str(parts[-1])
        return _at(parts[:-1], f"unknown key {key!r}{nearest(key, _known_keys(parts[:-1], models))}")
    if detail["type"] == "missing":
        return _at(parts[:-1], f"missing key '{parts[-1]}'")
    what = _WORDS.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    return _at(parts, what.replace("Input should be", "it must be"))


def _at(parts: Sequence[str | int], what: str) -> str:
    shown = [part for part in parts if isinstance(part, int) or not _is_tag(part)]
    return f"{place(shown)}: {what}" if shown else what


def _is_tag(part: str) -> bool:
    return part.startswith("<") and part.endswith(">")


def _known_keys(parts: Sequence[str | int], models: Models) -> list[str]:
    model = models.get(tuple("*" if isinstance(part, int) else part for part in parts))
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]
