"""Which configuration a command reads."""

from __future__ import annotations

from pathlib import Path

from quintain.config import Config, find_config, load_config
from quintain.errors import ConfigError
from quintain.settings import Settings


def configuration(settings: Settings, named: Path | None, *, start: Path | None = None) -> Config:
    """The configuration named, else QUINTAIN_CONFIG, else the one found from ``start`` upwards (the working folder).

    Raises `ConfigError` where there is none, and for every mistake in it.
    """
    path = configuration_path(settings, named, start=start)
    if path is None:
        raise ConfigError(
            "No configuration: there is no quintain.yaml (or agentv.config.yaml) here or in any folder above; "
            "write one, or name it with QUINTAIN_CONFIG"
        )
    return load_config(path)


def configuration_path(settings: Settings, named: Path | None, *, start: Path | None = None) -> Path | None:
    """Where that configuration is; None where nobody named one and none is found."""
    return named or settings.config_path or find_config(start or Path.cwd()) or find_config(Path.cwd())
