"""The configuration file ``quintain.yaml``: the targets and how each is reached (``docs/configuration.md``).

Loading a file does not read the environment; `Config.resolve` substitutes environment variables.
"""

from __future__ import annotations

from quintain.config.fingerprint import target_fingerprints
from quintain.config.loader import Config, find_config, load_config
from quintain.config.nested_models import MockUsage, TargetChildSession
from quintain.config.targets import (
    AnthropicTarget,
    CommandTarget,
    MockTarget,
    OpenAITarget,
    PydanticAITarget,
    PythonTarget,
    TargetConfig,
    TargetTarget,
    card_of,
)

__all__ = [
    "AnthropicTarget",
    "CommandTarget",
    "Config",
    "MockTarget",
    "MockUsage",
    "OpenAITarget",
    "PydanticAITarget",
    "PythonTarget",
    "TargetChildSession",
    "TargetConfig",
    "TargetTarget",
    "card_of",
    "find_config",
    "load_config",
    "target_fingerprints",
]
