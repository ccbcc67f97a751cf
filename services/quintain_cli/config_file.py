"""Finds and loads the configuration file that a command uses."""

from __future__ import annotations

from pathlib import Path

from quintain.config import Config, find_config, load_config
from quintain.errors import ConfigError
from quintain.settings import Settings


def load_configuration(settings: Settings, config_path: Path | None, *, start_folder: Path | None = None) -> Config:
    """The configuration named, else QUINTAIN_CONFIG, else the one found from ``start_folder`` upwards (the working
    folder).

    Raises `ConfigError` where there is none, and for every mistake in it.
    """
    path = find_configuration(settings, config_path, start_folder=start_folder)
    if path is None:
        raise ConfigError(
            "No configuration: there is no quintain.yaml (or agentv.config.yaml) here or in any folder above; "
            "write one, or name it with QUINTAIN_CONFIG"
        )
    return load_config(path)


def find_configuration(
    settings: Settings, config_path: Path | None, *, start_folder: Path | None = None
) -> Path | None:
    """Where that configuration is; None where nobody named one and none is found."""
    return config_path or settings.config_path or find_config(start_folder or Path.cwd()) or find_config(Path.cwd())
