"""The configuration file ``quintain.yaml``: which targets there are, and how each is reached (``protocol.md`` §7).

Reading a file touches no environment; `Config.resolved` puts the environment's values in.
"""

from __future__ import annotations

from quintain.config.loading import Config, find_config, load_config
from quintain.config.targets import (
    AnthropicTarget,
    CommandTarget,
    MockTarget,
    MockUsage,
    OpenAITarget,
    PythonTarget,
    TargetChildSession,
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
    "PythonTarget",
    "TargetChildSession",
    "TargetConfig",
    "TargetTarget",
    "card_of",
    "find_config",
    "load_config",
]
