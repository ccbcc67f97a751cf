"""Models behind OpenAI's API, or behind any server that speaks it. Needs ``quintain[openai]``."""

from __future__ import annotations

from urllib.parse import urlsplit

from openai import AsyncOpenAI
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import merge_profile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from quintain.config import OpenAITarget
from quintain_worker.providers.build import Surroundings
from quintain_worker.providers.models import NO_KEY, VERBATIM, Defaults, Dialect, ModelProvider, http_client

#: Named, so that no variable of the library's own leads elsewhere.
_BASE_URL = "https://api.openai.com/v1"

_DIALECTS = {
    "chat": Dialect(
        provider="openai",
        settings=frozenset({"temperature", "max_tokens", "seed", "stop", "response_format"}),
    ),
    "responses": Dialect(provider="openai", settings=frozenset({"temperature", "max_tokens"})),
}

#: Those who want ``max_completion_tokens``; other servers know ``max_tokens`` alone, and some ignore the other.
_NEW_LIMIT_HOSTS = (".openai.com", ".azure.com")


def openai_provider(_name: str, target: OpenAITarget, _surroundings: Surroundings) -> ModelProvider:
    """The provider of this target."""
    key = "" if target.api_key is None else target.api_key.get_secret_value().strip()
    client = http_client(target.max_concurrency)
    sdk = AsyncOpenAI(api_key=key or NO_KEY, base_url=target.base_url or _BASE_URL, http_client=client, max_retries=0)
    return ModelProvider(
        _model(target, OpenAIProvider(openai_client=sdk)),
        client,
        dialect=_DIALECTS[target.api],
        defaults=Defaults(temperature=target.temperature, max_tokens=target.max_tokens),
    )


def _model(target: OpenAITarget, provider: OpenAIProvider) -> Model:
    host = urlsplit(target.base_url or _BASE_URL).hostname or ""
    profile = OpenAIModelProfile(
        # What the caller sets is sent; the provider says so itself where it will not have it. The library would
        # drop a temperature in silence, and send system messages of some models as the user's.
        openai_supports_reasoning=False,
        openai_supports_encrypted_reasoning_content=False,
        openai_responses_supports_reasoning_context=False,
        openai_system_prompt_role="system",
        openai_chat_supports_max_completion_tokens=host.endswith(_NEW_LIMIT_HOSTS),
    )
    kind = OpenAIChatModel if target.api == "chat" else OpenAIResponsesModel
    return kind(target.model, provider=provider, profile=merge_profile(profile, VERBATIM))
