"""Finds and loads the configuration file that a command uses."""

from __future__ import annotations

from pathlib import Path

from quintain.config import Config, find_config, load_config
from quintain.errors import ConfigError
from quintain.settings import Settings


def load_configuration(settings: Settings, config_path: Path | None, *, start_folder: Path | None = None) -> Config:
    """Load the configuration: ``config_path``, else QUINTAIN_CONFIG, else the file found from a folder upwards.

    The search begins in ``start_folder``, by default the working folder. Raises `ConfigError` if there is no file or
    if it has errors.
    """
    path = find_configuration(settings, config_path, start_folder=start_folder)
    if path is None:
        raise ConfigError(
            "No configuration: there is no quintain.yaml (or agentv.config.yaml) here or in any folder above; "
            "`quintain init` writes one; or name it with QUINTAIN_CONFIG"
        )
    return load_config(path)


def find_configuration(
    settings: Settings, config_path: Path | None, *, start_folder: Path | None = None
) -> Path | None:
    """Return the path of the file that `load_configuration` would load, or None if there is none."""
    return config_path or settings.config_path or find_config(start_folder or Path.cwd()) or find_config(Path.cwd())
