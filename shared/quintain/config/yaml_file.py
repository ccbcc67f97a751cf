"""Reads and writes YAML 1.2, strictly: with the line of each value, without duplicate keys, and bounded in size."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path

import yaml

from quintain.errors import ConfigError
from quintain.runtime.text_files import read_text

_TAG = "tag:yaml.org,2002:"

#: What is no text without quotes, by its kind: the core schema of YAML 1.2 (chapter 10.3), and merge keys.
_CORE = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": "<<",
}

#: Where PyYAML ends a line, or YAML has no such character; in double quotes an escape stands for it.
_REFUSED = re.compile(r"[^\t\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")

#: The most values that a file may contain, keys included; an alias counts as all values that it stands for.
MAX_NODES = 100_000

#: The most levels of nesting; an alias is as deep as the value that it stands for.
MAX_DEPTH = 100
_TOO_DEEP = f"nested too deeply: more than {MAX_DEPTH} levels, aliases expanded"


#: The keys and positions that lead to a value of a file, such as ``("targets", 0, "model")``.
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A file's tree, and the line of every value, from 1."""

    value: object
    lines: Mapping[Place, int] = field(default_factory=dict)
    _differing: Sequence[yaml.ScalarNode] = ()
    _construct: Callable[[], object] = object

    def line(self, place: Place) -> int:
        """The line of the value at a place, or of the nearest one around it that has a line; 0 if there is none."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 0)

    def notes(self, read: Callable[[object], object]) -> Iterator[str]:
        """Say, by line, of which values ``read`` makes something else than of what they mean in YAML 1.1.

        ``read`` is given a tree; it raises `ConfigError` or `ValueError` for one that is no valid file.
        """
        now = read(self.value) if self._differing else None
        for node in self._differing:
            tag, node.tag = node.tag, _OLDER_TAG
            is_same = True
            with contextlib.suppress(ConfigError, ValueError, yaml.YAMLError):
                is_same = read(self._construct()) == now
            node.tag = tag
            if not is_same:
                read_as = parse_yaml(node.value, "").value, yaml.safe_load(node.value)
                ours, older = (json.dumps(one, default=lambda _: "a date") for one in read_as)
                yield (
                    f"line {node.start_mark.line + 1}: {node.value} is read as {ours}, as in YAML 1.2, and not as "
                    f"{older}, as in YAML 1.1; write {ours}, or {older}"
                )


def read_yaml(path: Path, errors: list[str] | None = None) -> YamlDocument:
    """Read a YAML file. Errors of single keys and values are appended to ``errors``, or raised where that is not given.

    Raises `ConfigError` with file, line and column if it is not valid YAML, or if it has more than `MAX_NODES` nodes or
    `MAX_DEPTH` levels once its aliases are expanded.
    """
    return parse_yaml(read_text(path), str(path), errors)


def parse_yaml(text: str, name: str, errors: list[str] | None = None) -> YamlDocument:
    """Read the text of a YAML file, whose ``name`` the errors begin with. Raises as `read_yaml`."""
    if refused := _REFUSED.search(text):
        before, character = text[: refused.start()].split("\n"), ord(refused[0])
        where = f"{name}: line {len(before)}, column {len(before[-1]) + 1}"
        raise ConfigError(
            f'{where}: not YAML: unacceptable character U+{character:04X}; write "\\u{character:04x}" in quotes'
        )
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return YamlDocument(None)
        _extent(node, {})
        # Before the values are constructed, because that resolves merge keys and changes the nodes.
        lines = dict(_lines(node, ()))
        value = loader.construct_document(node)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}") from None
    except RecursionError:
        raise ConfigError(f"{name}: {_position(loader.get_mark())}{_TOO_DEEP}") from None
    except (yaml.MarkedYAMLError, ValueError, OverflowError) as error:
        # Of Python's own errors the escape of no character is one.
        position = _position(getattr(error, "problem_mark", None) or loader.get_mark())
        problem = str(getattr(error, "problem", error))
        mend = "; indent with spaces, not with a tab" if repr("\t") in problem else ""
        raise ConfigError(f"{name}: {position}not YAML: {problem}{mend}") from None
    finally:
        loader.dispose()
    if errors is None and loader.errors:
        raise ConfigError("\n".join(f"{name}: {error}" for error in loader.errors))
    if errors is not None:
        errors += loader.errors
    return YamlDocument(value, lines, loader.differing, partial(loader.construct_document, node))


def write_yaml(value: object) -> str:
    """Write a value as YAML, in the order of its keys: readers of YAML 1.1 and 1.2 read the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _lines(node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
    yield place, node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, (*place, index))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield from _lines(value, (*place, key.value))


def _extent(node: yaml.Node, known: dict[int, tuple[int, int]], level: int = 1) -> tuple[int, int]:
    """The number of values and of levels of a node, itself included, with aliases expanded: they let a short text stand
    for any number. ``known`` are those of other nodes, by their identity, and ``level`` is its own, from 1.

    Raises `ConfigError` if there are too many.
    """
    nodes, depth = known.get(id(node), (1, 1))
    if level + depth - 1 > MAX_DEPTH:
        raise ConfigError(f"{_position(node.start_mark)}{_TOO_DEEP}")
    if id(node) in known:
        if not nodes:
            raise ConfigError(f"{_position(node.start_mark)}an anchor contains itself; write the value out")
        return nodes, depth
    known[id(node)] = 0, 1
    if isinstance(node, yaml.CollectionNode):
        items = node.value if isinstance(node, yaml.SequenceNode) else itertools.chain.from_iterable(node.value)
        for item in items:
            count, levels = _extent(item, known, level + 1)
            nodes, depth = nodes + count, max(depth, levels + 1)
    if nodes > MAX_NODES:
        raise ConfigError(
            f"{_position(node.start_mark)}with aliases expanded it has more than {MAX_NODES:,} values; use fewer or "
            "smaller aliases, or for cases JSON lines"
        )
    known[id(node)] = nodes, depth
    return nodes, depth


class _Loader(yaml.SafeLoader):
    """A loader of the core schema. ``errors`` are those of single keys and values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.errors: list[str] = []
        self.differing: list[yaml.ScalarNode] = []

    def compose_scalar_node(self, anchor: dict[str, yaml.Node]) -> yaml.ScalarNode:
        is_plain = self.peek_event().implicit[0]  # type: ignore[no-untyped-call]
        node = super().compose_scalar_node(anchor)
        try:
            # Two escapes may stand for one character, as in JSON.
            node.value = node.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise ConfigError(f"{_position(node.start_mark)}half of a surrogate pair is no character") from None
        older = _OLDER.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
        if is_plain and node.tag != older:
            self.differing.append(node)
        return node

    def compose_mapping_node(self, anchor: dict[str, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                self.errors.append(f"line {key.start_mark.line + 1}: the key {key.value!r} is given twice")
            seen.add(key.value)
        return node

    def construct_core(self, node: yaml.ScalarNode) -> object:
        """The value of a plain text that is none, or of one with such a tag."""
        kind, text = node.tag.removeprefix(_TAG), node.value
        value: object = math.inf
        with contextlib.suppress(KeyError, ValueError):
            value = _VALUES[kind](text.lower())
        is_too_large = value in (math.inf, -math.inf) and "inf" not in text.lower()
        exact = Decimal(text) if isinstance(value, float) and math.isfinite(value) else Decimal()
        is_rounded = len(exact.normalize().as_tuple().digits) > _SURE_DIGITS
        if is_too_large or is_rounded or _LEADING_ZERO.match(text):
            self.errors.append(
                f"line {node.start_mark.line + 1}: {text[:40]} cannot be read as {kind}; put it in quotes"
            )
        return value


def _position(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}: "


#: So many significant digits of a number with a fraction are kept.
_SURE_DIGITS = 17

_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")

_VALUES: dict[str, Callable[[str], object]] = {
    "null": lambda _: None,
    "bool": {"true": True, "false": False}.__getitem__,
    "int": lambda text: int(text, 0),
    "float": lambda text: float(text.replace(".inf", "inf").replace(".nan", "nan")),
}

#: The tag of a plain text that is read as in YAML 1.1, and what says what it is there.
_OLDER_TAG, _OLDER = "older", yaml.resolver.Resolver()


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes what is no text in YAML 1.1 or in the core schema, and what ends a line in YAML 1.1."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_TAG + "str", text, style='"' if _REFUSED.search(text) else None)


_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {
    **{_TAG + kind: _Loader.construct_core for kind in _VALUES},
    **{_TAG + kind: yaml.SafeLoader.construct_yaml_str for kind in ("str", "merge")},
    _TAG + "seq": yaml.SafeLoader.construct_yaml_seq,
    _TAG + "map": yaml.SafeLoader.construct_yaml_map,
    _OLDER_TAG: lambda _, node: yaml.safe_load(node.value),
    None: yaml.SafeLoader.construct_undefined,
}
_Dumper.add_representer(str, _represent_text)
for _class in (_Loader, _Dumper):
    for _kind, _pattern in _CORE.items():
        _class.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern})$"), None)
