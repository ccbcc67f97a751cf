"""Reads a YAML file strictly: plain data only, no duplicate keys, errors with line numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from quintain.errors import ConfigError


def read_yaml(path: Path) -> tuple[object, list[str]]:
    """Read a YAML file; returns its tree and an error message for every duplicate key.

    Raises `ConfigError` with file, line and column if it is not valid YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        key_errors = [] if node is None else list(_duplicate_key_errors(node, ()))
        return yaml.safe_load(text), key_errors
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}: {_error_position(error)}not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        # The loader raises ValueError for a date that does not exist.
        raise ConfigError(f"{path}: not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply, or an anchor holds itself") from None


def _error_position(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


def _duplicate_key_errors(node: yaml.Node, ancestors: tuple[int, ...]) -> Iterator[str]:
    if id(node) in ancestors:
        raise RecursionError
    path_ids = (*ancestors, id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _duplicate_key_errors(item, path_ids)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    yield f"line {key.start_mark.line + 1}: the key {key.value!r} is given twice"
                seen.add(key.value)
            yield from _duplicate_key_errors(value, path_ids)
