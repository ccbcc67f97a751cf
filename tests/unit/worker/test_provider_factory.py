"""From a target to its provider: what the extras are for, and what is said where one is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quintain.config.nested_models import TargetSettings
from quintain.config.targets import AnthropicTarget, MockTarget, OpenAITarget, PydanticAITarget
from quintain.errors import ConfigError
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import ProviderContext

CONTEXT = ProviderContext(Path.cwd(), {})


def test_a_provider_whose_extra_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "quintain_worker.providers.pydantic_ai", raising=False)
    # None is how the interpreter knows that a module cannot be imported.
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    with pytest.raises(ConfigError, match=r"pip install 'quintain\[pydantic-ai\]'"):
        build_provider("judge", PydanticAITarget(provider="pydantic-ai", model="mistral:m"), CONTEXT)


async def test_a_provider_without_an_extra_needs_no_model_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pydantic_ai", "openai", "anthropic", "httpx2"):
        monkeypatch.setitem(sys.modules, library, None)
    for module in [name for name in sys.modules if name.startswith("quintain_worker.providers.m")]:
        monkeypatch.delitem(sys.modules, module)
    build_provider("it", MockTarget(provider="mock"), CONTEXT)
    for target in (OpenAITarget(provider="openai", model="m"), AnthropicTarget(provider="anthropic", model="m")):
        await build_provider("it", target, CONTEXT).close()


def test_a_setting_that_utf_8_cannot_write_is_an_error_of_the_configuration() -> None:
    settings = TargetSettings.model_validate({"extra_body": {"user": "\ud800"}})
    with pytest.raises(ConfigError, match=r"^targets\.it\."):
        build_provider("it", OpenAITarget(provider="openai", model="m", settings=settings), CONTEXT)
