"""Finding and loading the configuration, and putting the environment's values in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from quintain.config.reading import Written, read_targets, written_targets
from quintain.config.references import missing_in, misspelt_in, names_in, secrets_in, substituted
from quintain.config.targets import TargetConfig
from quintain.config.yaml_file import read_yaml
from quintain.errors import ConfigError
from quintain.secret_files import with_secrets

#: The names a configuration may have, the first one first.
FILE_NAMES = ("quintain.yaml", "agentv.config.yaml")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A configuration, checked. ``targets`` are in the file's order, ``references`` every variable it names.

    As loaded, api keys hold their references, and a number behind a reference shows its default; `resolved`
    has the values.
    """

    path: Path
    targets: dict[str, TargetConfig]
    references: tuple[str, ...]
    written: Written = field(repr=False)

    @property
    def folder(self) -> Path:
        """The folder of the file: where relative paths and modules start."""
        return self.path.parent

    def resolved(self, env: Mapping[str, str]) -> Config:
        """This configuration with the environment's values in; those of ``NAME_FILE`` out of the files it names.

        Raises `ConfigError` with every missing variable, or every value that does not fit, a line each.
        """
        whole, env = {"targets": self.written}, with_secrets(env, self.references)
        mistakes = list(missing_in(whole, env))
        _refuse(self.path, mistakes)
        values = cast("Written", substituted(self.written, env))
        targets = read_targets(self.written, mistakes, resolved=values)
        _refuse(self.path, mistakes)
        return replace(self, targets=targets)


def load_config(path: Path) -> Config:
    """The configuration in this file, without a look at the environment.

    Raises `ConfigError` with all of the file's mistakes, a line each.
    """
    tree, mistakes = read_yaml(path)
    mistakes.extend(misspelt_in(tree))
    mistakes.extend(secrets_in(tree))
    written = written_targets(tree, mistakes)
    targets = read_targets(written, mistakes)
    _refuse(path, mistakes)
    return Config(path=path.absolute(), targets=targets, references=names_in({"targets": written}), written=written)


def find_config(start: Path) -> Path | None:
    """The configuration of this folder, or of the nearest folder above it that has one."""
    here = start.absolute()
    for folder in (here, *here.parents):
        for name in FILE_NAMES:
            if (folder / name).is_file():
                return folder / name
    return None


def _refuse(path: Path, mistakes: list[str]) -> None:
    if mistakes:
        raise ConfigError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
