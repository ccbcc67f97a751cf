"""Finds and loads the configuration file, and substitutes environment variables in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from quintain.config.parser import RawTargets, parse_targets, validate_targets
from quintain.config.references import (
    find_variables,
    literal_secret_errors,
    missing_variable_errors,
    substitute,
    syntax_errors,
)
from quintain.config.targets import TargetConfig
from quintain.config.yaml_file import read_yaml
from quintain.errors import ConfigError
from quintain.secret_files import with_secrets

#: The names a configuration may have, the first one first.
FILE_NAMES = ("quintain.yaml", "agentv.config.yaml")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A configuration, checked. ``targets`` are in the file's order, ``variable_names`` every variable it names.

    As loaded, api keys hold their references, and a number behind a reference shows its default; `resolve`
    has the values.
    """

    path: Path
    targets: dict[str, TargetConfig]
    variable_names: tuple[str, ...]
    raw_targets: RawTargets = field(repr=False)

    @property
    def folder(self) -> Path:
        """The folder of the file: where relative paths and modules start."""
        return self.path.parent

    def resolve(self, env: Mapping[str, str]) -> Config:
        """This configuration with the environment's values in; those of ``NAME_FILE`` out of the files it names.

        Raises `ConfigError` with every missing variable, or every value that does not fit, a line each.
        """
        tree, env = {"targets": self.raw_targets}, with_secrets(env, self.variable_names)
        errors = list(missing_variable_errors(tree, env))
        _raise_errors(self.path, errors)
        values = cast("RawTargets", substitute(self.raw_targets, env))
        targets = validate_targets(self.raw_targets, errors, resolved=values)
        _raise_errors(self.path, errors)
        return replace(self, targets=targets)


def load_config(path: Path) -> Config:
    """The configuration in this file, without a look at the environment.

    Raises `ConfigError` with all of the file's mistakes, a line each.
    """
    tree, errors = read_yaml(path)
    errors.extend(syntax_errors(tree))
    errors.extend(literal_secret_errors(tree))
    raw_targets = parse_targets(tree, errors)
    targets = validate_targets(raw_targets, errors)
    _raise_errors(path, errors)
    return Config(
        path=path.absolute(),
        targets=targets,
        variable_names=find_variables({"targets": raw_targets}),
        raw_targets=raw_targets,
    )


def find_config(start: Path) -> Path | None:
    """The configuration of this folder, or of the nearest folder above it that has one."""
    start_folder = start.absolute()
    for folder in (start_folder, *start_folder.parents):
        for name in FILE_NAMES:
            if (folder / name).is_file():
                return folder / name
    return None


def _raise_errors(path: Path, errors: list[str]) -> None:
    if errors:
        raise ConfigError("\n".join(f"{path}: {error}" for error in errors))
