"""Models behind Anthropic's API. Needs ``quintain[anthropic]``."""

from __future__ import annotations

from anthropic import AsyncAnthropic
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.profiles import merge_profile
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider

from quintain.config import AnthropicTarget
from quintain_worker.providers.build import Surroundings
from quintain_worker.providers.models import NO_KEY, VERBATIM, Defaults, Dialect, ModelProvider, http_client

#: Named, so that no variable of the library's own leads elsewhere.
_BASE_URL = "https://api.anthropic.com"

_DIALECT = Dialect(
    provider="anthropic",
    settings=frozenset({"temperature", "max_tokens", "stop"}),
    late_system=False,
    empty_text=False,
)

#: What the caller sets is sent, and sent once; the provider says so itself where it will not have it.
_AS_ASKED = AnthropicModelProfile(
    anthropic_disallows_sampling_settings=False,
    anthropic_max_output_tokens=None,
    anthropic_binds_thinking_blocks=False,
)


def anthropic_provider(_name: str, target: AnthropicTarget, _surroundings: Surroundings) -> ModelProvider:
    """The provider of this target."""
    key = "" if target.api_key is None else target.api_key.get_secret_value().strip()
    client = http_client(target.max_concurrency)
    sdk = AsyncAnthropic(
        api_key=key or NO_KEY, base_url=target.base_url or _BASE_URL, http_client=client, max_retries=0
    )
    model = AnthropicModel(
        target.model,
        provider=AnthropicProvider(anthropic_client=sdk),
        profile=merge_profile(_AS_ASKED, VERBATIM),
    )
    return ModelProvider(
        model,
        client,
        dialect=_DIALECT,
        defaults=Defaults(temperature=target.temperature, max_tokens=target.max_tokens),
    )
