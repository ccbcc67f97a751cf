"""Reads a YAML file strictly: with the line of each value, without duplicate keys, and bounded in size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from quintain.errors import ConfigError
from quintain.runtime.text_files import read_text

#: The most values that a file may contain, keys included; an alias counts as all values that it stands for.
MAX_NODES = 100_000

#: The most levels of nesting; an alias is as deep as the value that it stands for.
MAX_DEPTH = 100


def read_yaml(path: Path) -> tuple[object, list[str]]:
    """Read a YAML file; returns its tree and an error message for every duplicate key.

    Raises `ConfigError` with file, line and column if it is not valid YAML, or if it has more than `MAX_NODES` nodes or
    `MAX_DEPTH` levels once its aliases are expanded.
    """
    document = read_yaml_document(path)
    return document.value, document.duplicate_keys


#: The keys and positions that lead to a value of a file, such as ``("targets", 0, "model")``.
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A file's tree, an error message for every duplicate key, and the line of every value, from 1."""

    value: object
    duplicate_keys: list[str]
    lines: Mapping[Place, int]

    def line(self, place: Place) -> int:
        """The line of the value at a place, or of the nearest one around it that has a line; 0 if there is none."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 0)


def read_yaml_document(path: Path) -> YamlDocument:
    """Read a YAML file as `read_yaml` does, with the lines of its values."""
    text = read_text(path)
    try:
        return _parse(text)
    except _TooLarge as error:
        raise ConfigError(f"{path}: {_mark_position(error.mark)}{error.reason}") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}: {_error_position(error)}not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        # The loader raises ValueError for a date that does not exist.
        raise ConfigError(f"{path}: not YAML: {error}") from None


def _parse(text: str) -> YamlDocument:
    loader = _BoundedLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return YamlDocument(None, [], {})
        # Before the values are constructed, because that resolves merge keys and changes the nodes.
        key_errors = list(_duplicate_key_errors(node, set()))
        lines = dict(_lines(node, ()))
        return YamlDocument(loader.construct_document(node), key_errors, lines)
    finally:
        loader.dispose()


def _lines(node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
    yield place, node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, (*place, index))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield from _lines(value, (*place, key.value))


class _TooLarge(Exception):
    """The file has more nodes or levels than allowed."""

    def __init__(self, mark: yaml.Mark, reason: str) -> None:
        super().__init__(reason)
        self.mark, self.reason = mark, reason


@dataclass(frozen=True, slots=True)
class _Extent:
    """The number of nodes and levels of a node, itself included, with aliases expanded."""

    nodes: int
    depth: int


class _BoundedLoader(yaml.SafeLoader):
    """A loader that counts nodes while it composes them, because aliases let a short text stand for any number."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._extents: dict[int, _Extent] = {}
        self._nodes = self._depth = self._deepest = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        nodes_before, deepest_before = self._nodes, self._deepest
        self._depth += 1
        self._deepest = self._depth
        # Before the nodes below it are composed, which recurses.
        self._count(mark, nodes=1, depth=self._depth)
        node = super().compose_node(parent, index)
        if is_alias:
            extent = self._extents.get(id(node))
            if extent is None:
                raise _TooLarge(mark, "an anchor contains itself; write the value out")
            self._count(mark, nodes=extent.nodes - 1, depth=self._depth + extent.depth - 1)
        else:
            self._extents[id(node)] = _Extent(self._nodes - nodes_before, self._deepest - self._depth + 1)
        self._deepest = max(self._deepest, deepest_before)
        self._depth -= 1
        return node

    def _count(self, mark: yaml.Mark, *, nodes: int, depth: int) -> None:
        self._nodes += nodes
        self._deepest = max(self._deepest, depth)
        if self._nodes > MAX_NODES:
            raise _TooLarge(
                mark, f"with aliases expanded it has more than {MAX_NODES:,} values; use fewer or smaller aliases"
            )
        if self._deepest > MAX_DEPTH:
            raise _TooLarge(mark, f"nested too deeply: more than {MAX_DEPTH} levels, aliases expanded")


def _error_position(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return "" if mark is None else _mark_position(mark)


def _mark_position(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: "


def _duplicate_key_errors(node: yaml.Node, visited: set[int]) -> Iterator[str]:
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _duplicate_key_errors(item, visited)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    yield f"line {key.start_mark.line + 1}: the key {key.value!r} is given twice"
                seen.add(key.value)
            yield from _duplicate_key_errors(value, visited)
