"""Creates the provider of a target from its configuration.

A provider kind whose extra is not installed raises `ConfigError`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from quintain.bus.base import Bus
from quintain.config import TargetConfig
from quintain.errors import ConfigError
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_worker.providers.provider import Provider


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """The worker's environment that providers are built with.

    ``folder`` is the configuration's folder, which relative paths start from; ``env`` is the environment of programs.
    """

    folder: Path
    env: Mapping[str, str]
    bus: Bus | None = None
    timings: Timings = DEFAULT_TIMINGS


ProviderFactory = Callable[[str, TargetConfig, ProviderContext], Provider]

#: Provider kind → its factory as ``module:function``. Imported on demand, because a kind's extra may not be installed.
_FACTORIES = {
    "anthropic": "quintain_worker.providers.models.provider:model_provider",
    "command": "quintain_worker.providers.command:command_provider",
    "mock": "quintain_worker.providers.mock:mock_provider",
    "openai": "quintain_worker.providers.models.provider:model_provider",
    "pydantic-ai": "quintain_worker.providers.pydantic_ai:pydantic_ai_provider",
    "python": "quintain_worker.providers.python_callable:python_provider",
    "target": "quintain_worker.providers.remote_target:remote_target_provider",
}

#: The kinds that need an extra of the same name.
PROVIDERS_WITH_EXTRA = frozenset({"pydantic-ai"})


def build_provider(name: str, target: TargetConfig, context: ProviderContext) -> Provider:
    """Create the provider of a resolved target.

    Raises `ConfigError` where its extra is missing or its configuration is wrong.
    """
    return load_provider_factory(name, target)(name, target, context)


def load_provider_factory(name: str, target: TargetConfig) -> ProviderFactory:
    """Import the function that creates the provider of a target.

    Raises `ConfigError` if the extra of its provider kind is not installed.
    """
    module, _, function = _FACTORIES[target.provider].partition(":")
    try:
        return cast("ProviderFactory", getattr(importlib.import_module(module), function))
    except ImportError as error:
        if target.provider not in PROVIDERS_WITH_EXTRA:
            raise
        hint = f"pip install 'quintain[{target.provider}]'"
        raise ConfigError(f"targets.{name}: provider {target.provider} needs: {hint}") from error
