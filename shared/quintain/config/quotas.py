"""The quotas of the configuration file: what one provider key may use, and which targets share it. No I/O."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, FiniteFloat, model_validator

from quintain.config.http_targets import HttpTarget
from quintain.config.nested_models import StrictModel
from quintain.config.targets import AnthropicTarget, ModelTarget, OpenAITarget, PydanticAITarget, TargetConfig
from quintain.contracts.ledger import TargetCard
from quintain.contracts.money import CostTerms
from quintain.contracts.quota import MAX_IN_FLIGHT, MAX_PER_MINUTE, QuotaCard, QuotaTerms

PerMinute = Annotated[FiniteFloat, Field(gt=0, le=MAX_PER_MINUTE)]
InFlight = Annotated[int, Field(ge=1, le=MAX_IN_FLIGHT)]


class QuotaConcurrency(StrictModel):
    """The calls in flight of a quota: how many at first, and between which bounds."""

    start: InFlight = 20
    """How many at first; without adaptive it stays at this."""
    min: InFlight = 1
    """The fewest."""
    max: InFlight = 256
    """The most."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.min <= self.start <= self.max:
            raise ValueError(f"min {self.min}, start {self.start} and max {self.max} are not in this order")
        return self


class QuotaConfig(StrictModel):
    """What one provider key may use."""

    requests_per_minute: PerMinute | None = None
    """Requests a minute. If absent, what the provider's headers name, or what is learned."""
    tokens_per_minute: PerMinute | None = None
    """Tokens a minute, of questions and answers. If absent, what the provider's headers name."""
    concurrency: QuotaConcurrency = QuotaConcurrency()
    """The calls in flight."""
    adaptive: bool = True
    """Whether the calls in flight follow what the provider takes."""

    @property
    def terms(self) -> QuotaTerms:
        """The same numbers as they are registered."""
        return QuotaTerms(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            start=self.concurrency.start,
            min=self.concurrency.min,
            max=self.concurrency.max,
            adaptive=self.adaptive,
        )


def quota_of(target: TargetConfig, quotas: Mapping[str, QuotaConfig]) -> QuotaCard | None:
    """Return the quota of a resolved target: the one that it names, else that of its provider, URL and key.

    None for a target that has neither, such as a program, and for one that is not adaptive. The id of a quota without a
    name is an HMAC whose key is the API key, so that it shows nothing of the key.
    """
    if target.quota is not None:
        return QuotaCard(id=target.quota, name=target.quota, terms=quotas[target.quota].terms)
    if not isinstance(target, OpenAITarget | AnthropicTarget | PydanticAITarget | HttpTarget) or not target.adaptive:
        return None
    if isinstance(target, HttpTarget):
        url, key = target.url, "\n".join(target.secrets)
    else:
        # Of other vendors only the vendor is known where no URL is given.
        own = target.url if isinstance(target, OpenAITarget | AnthropicTarget) else target.base_url
        url = own or target.model.partition(":")[0]
        key = "" if target.api_key is None else target.api_key.get_secret_value().strip()
    digest = hmac.new(key.encode(), f"{target.provider}\n{url}".encode(), hashlib.sha256).hexdigest()[:32]
    name = f"{target.provider} at {urlsplit(url).hostname or url}, key {digest[:4]}"
    # No name of a quota has a colon.
    return QuotaCard(id=f"key:{digest}", name=name, terms=QuotaTerms())


def card_of(
    name: str,
    target: TargetConfig,
    quotas: Mapping[str, QuotaConfig] | None = None,
    cost: CostTerms | None = None,
) -> TargetCard:
    """Return a resolved target's public description, which never contains a key; without ``quotas`` it has no quota."""
    return TargetCard(
        name=name,
        provider=target.provider,
        model=target.model if isinstance(target, ModelTarget) else None,
        judge_target=target.judge_target,
        max_concurrency=target.max_concurrency,
        worker_concurrency=target.worker_concurrency,
        timeout_seconds=target.timeout_seconds,
        quota=None if quotas is None else quota_of(target, quotas),
        cost=cost,
        keeps_conversation=target.keeps_conversation,
    )
