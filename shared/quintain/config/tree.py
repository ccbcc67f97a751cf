"""Plain trees, as YAML gives them: every place has a name, such as ``targets.gpt4o.command[1]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


def place(parts: Sequence[str | int]) -> str:
    """The name of a place: keys joined by dots, indexes in brackets."""
    name = ""
    for part in parts:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else part
    return name


def texts(tree: object, parts: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text of a tree with its place, in the file's order."""
    if isinstance(tree, str):
        yield parts, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from texts(value, (*parts, str(key)))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from texts(value, (*parts, index))


def with_texts(tree: object, change: Callable[[str], str]) -> object:
    """The tree with every text changed; keys stay as they are."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, dict):
        return {key: with_texts(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [with_texts(value, change) for value in tree]
    return tree
