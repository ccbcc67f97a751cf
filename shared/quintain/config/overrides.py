"""Values that a command sets in place of those of a file, before the file is checked. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quintain.config.file_errors import suggestion
from quintain.config.secrets import format_path
from quintain.config.yaml_file import parse_yaml
from quintain.errors import ConfigError

#: The keys and positions that lead to a value, such as ``("targets", "m", "model")``.
Keys = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Override:
    """A value in place of a file's: ``key`` has its keys joined by dots, and ``text`` is the value as it was given.

    Errors name it by its ``option``, without the value, which may be a secret.
    """

    option: str
    key: str
    value: object
    text: str


def parse_overrides(texts: Iterable[str]) -> tuple[Override, ...]:
    """Read options ``KEY=VALUE``; a value is YAML. Raises `ConfigError` if one is no such text, or a key is set twice.

    Example::

        overrides = parse_overrides(["targets.gpt.temperature=0", "repeats=3"])
    """
    overrides: dict[str, Override] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key, option = re.sub(r"\[(\d+)\]", r".\1", key.strip()), f"--set {key}"
        if not equals or not all(key.split(".")):
            raise ConfigError(f"{option}: write KEY=VALUE, such as targets.gpt.temperature=0")
        if key in overrides:
            raise ConfigError(f"{option}: it is given twice; leave one out")
        overrides[key] = Override(option, key, parse_yaml(value, option).value, value)
    return tuple(overrides.values())


@dataclass(frozen=True, slots=True)
class OverriddenFile:
    """The tree of a file with the values of the overrides; ``path`` is the file's."""

    path: Path
    overrides: Sequence[Override]

    def tree(self, tree: object) -> object:
        """The tree with these values; the given one is not changed. Raises `ConfigError` for a place that is none."""
        for override in self.overrides:
            tree, _ = _with_value(tree, override.key.split("."), (), override)
        return tree

    def error(self, tree: object, messages: Iterable[str]) -> ConfigError:
        """One `ConfigError` with a line for each error, which names the option that made it, else the file; ``tree`` is
        the one without overrides."""
        keys = {override: _with_value(tree, override.key.split("."), (), override)[1] for override in self.overrides}
        lines = []
        for message in messages:
            option = next((one.option for one, place in keys.items() if _is_about(message, place)), self.path)
            lines.append(f"{option}: {message}")
        return ConfigError("\n".join(lines))


def _is_about(message: str, place: Keys) -> bool:
    """Whether the message of an error names this place, or its key as an unknown one."""
    parent = f"{format_path(place[:-1])}: " if place[:-1] else ""
    key = format_path(place)
    return message.startswith((f"{key}: ", f"{key}.", f"{key}[", f"{parent}unknown key {place[-1]!r}"))


def _with_value(tree: object, keys: list[str], before: Keys, override: Override) -> tuple[object, Keys]:
    """The tree with the value at these keys, and the place of what is new; a key of the tree may have dots."""
    if not keys:
        return override.value, before
    if isinstance(tree, list):
        names = {str(item.get("name")): index for index, item in enumerate(tree) if isinstance(item, dict)}
        known = {**{str(index): index for index in range(len(tree))}, **names}
        key, rest = _longest(keys, known)
        if key not in known:
            raise _unknown(override, key, before, names or known)
        index = known[key]
        item, place = _with_value(tree[index], rest, (*before, index), override)
        return [*tree[:index], item, *tree[index + 1 :]], place
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{override.option}: {format_path(before)} has no keys in the file; set it as a whole")
    tree = tree or {}
    key, rest = _longest(keys, tree)
    if before == ("targets",) and key not in tree:
        raise _unknown(override, key, before, tree)
    value, place = _with_value(tree.get(key), rest, (*before, key), override)
    return {**tree, key: value}, place if key in tree else (*before, key)


def _longest(keys: list[str], known: Iterable[object]) -> tuple[str, list[str]]:
    """The longest of the first keys that is known, joined by dots, and the keys after it; the first one if none is."""
    names = set(known)
    counts = (count for count in range(len(keys), 0, -1) if ".".join(keys[:count]) in names)
    count = next(counts, 1)
    return ".".join(keys[:count]), keys[count:]


def _unknown(override: Override, key: str, place: Keys, known: Iterable[object]) -> ConfigError:
    return ConfigError(f"{override.option}: {format_path(place)} has no {key!r}{suggestion(key, map(str, known))}")
