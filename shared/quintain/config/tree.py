"""Helpers for trees of dicts, lists and strings as YAML yields them: their paths, and a map over all strings.

A path is written as ``targets.gpt4o.command[1]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


def format_path(parts: Sequence[str | int]) -> str:
    """Return the path as text: keys joined by dots, indexes in brackets."""
    name = ""
    for part in parts:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else part
    return name


def iterate_strings(tree: object, parts: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every string of a tree with its path, in the file's order."""
    if isinstance(tree, str):
        yield parts, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from iterate_strings(value, (*parts, str(key)))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from iterate_strings(value, (*parts, index))


def map_strings(tree: object, change: Callable[[str], str]) -> object:
    """Return the tree with ``change`` applied to every string value; keys stay unchanged."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, dict):
        return {key: map_strings(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [map_strings(value, change) for value in tree]
    return tree
