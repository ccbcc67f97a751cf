"""Finds and loads the configuration file, and substitutes environment variables in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from quintain.config.parser import RawTargets, parse_quotas, parse_targets, validate_targets
from quintain.config.quotas import QuotaConfig
from quintain.config.targets import TargetConfig
from quintain.config.yaml_file import (
    find_variables,
    literal_secret_errors,
    missing_variable_errors,
    read_yaml,
    substitute,
    syntax_errors,
)
from quintain.errors import ConfigError
from quintain.settings import with_secrets

#: Possible names of the configuration file, in order of precedence.
FILE_NAMES = ("quintain.yaml", "agentv.config.yaml")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A validated configuration: ``targets`` in the file's order, ``quotas``, and ``variable_names``, all variables.

    After loading, API keys still hold their references, and other fields with a reference show their default; `resolve`
    fills in the values.
    """

    path: Path
    targets: dict[str, TargetConfig]
    variable_names: tuple[str, ...]
    raw_targets: RawTargets = field(repr=False)
    quotas: dict[str, QuotaConfig] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the file, to which relative paths refer and from which modules are imported."""
        return self.path.parent

    def resolve(self, env: Mapping[str, str]) -> Config:
        """Return this configuration with environment variables substituted; ``NAME_FILE`` is read for ``NAME``.

        Raises `ConfigError` with one line for every missing variable, or for every invalid value.
        """
        tree, env = {"targets": self.raw_targets}, with_secrets(env, self.variable_names)
        errors = list(missing_variable_errors(tree, env))
        _raise_errors(self.path, errors)
        values = cast("RawTargets", substitute(self.raw_targets, env))
        targets = validate_targets(self.raw_targets, errors, self.quotas, resolved=values)
        _raise_errors(self.path, errors)
        return replace(self, targets=targets)


def load_config(path: Path) -> Config:
    """Load and validate a configuration file without reading the environment.

    Raises `ConfigError` with one line for every mistake in the file.
    """
    tree, errors = read_yaml(path)
    errors.extend(syntax_errors(tree))
    errors.extend(literal_secret_errors(tree))
    raw_targets = parse_targets(tree, errors)
    quotas = parse_quotas(tree, errors)
    targets = validate_targets(raw_targets, errors, quotas)
    _raise_errors(path, errors)
    return Config(
        path=path.absolute(),
        targets=targets,
        variable_names=find_variables({"targets": raw_targets}),
        raw_targets=raw_targets,
        quotas=quotas,
    )


def find_config(start: Path) -> Path | None:
    """Return the configuration file of this folder or of the nearest parent folder that has one."""
    start_folder = start.absolute()
    for folder in (start_folder, *start_folder.parents):
        for name in FILE_NAMES:
            if (folder / name).is_file():
                return folder / name
    return None


def _raise_errors(path: Path, errors: list[str]) -> None:
    if errors:
        raise ConfigError("\n".join(f"{path}: {error}" for error in errors))
