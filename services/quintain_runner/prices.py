"""What a target's tokens cost: what its configuration says, else its provider's list price, else nobody knows. Pure.

List prices come with the package ``genai-prices``; nothing is fetched.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

import genai_prices
from pydantic import PlainSerializer

from quintain.config.targets import AnthropicTarget, OpenAITarget, TargetConfig
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message

_MILLION = Decimal(1_000_000)

#: Reckoned exactly, and written as a plain number.
Amount = Annotated[Decimal, PlainSerializer(float, return_type=float)]

#: Where a price comes from, as ``run.json`` says it.
CONFIGURED = "configuration"
LISTED = f"genai-prices {importlib.metadata.version('genai-prices')}"


class Price(Message):
    """US dollars per million tokens, and where that is said. Cached input tokens cost as the others where ``None``.

    ``least``: some calls may cost more, as where a provider asks more for long prompts.
    """

    input_per_million: Amount
    output_per_million: Amount
    cached_input_per_million: Amount | None = None
    source: str = CONFIGURED
    least: bool = False

    def of(self, usage: TokenUsage) -> Decimal:
        """What these tokens cost, in US dollars."""
        cached = min(usage.cached or 0, usage.input)
        cached_price = (
            self.input_per_million if self.cached_input_per_million is None else self.cached_input_per_million
        )
        dear = (usage.input - cached) * self.input_per_million + usage.output * self.output_per_million
        return (dear + cached * cached_price) / _MILLION


def prices_of(targets: Mapping[str, TargetConfig]) -> dict[str, Price]:
    """The prices that are known, by target."""
    known = {name: price_of(target) for name, target in targets.items()}
    return {name: price for name, price in known.items() if price is not None}


def price_of(target: TargetConfig) -> Price | None:
    """The price of a target's tokens, or None where nobody knows it."""
    if (said := target.price) is not None:
        return Price.model_validate(said.model_dump())
    if not isinstance(target, OpenAITarget | AnthropicTarget):
        return None
    return _listed(target.provider, target.base_url, target.model)


def _listed(provider: str, base_url: str | None, model: str) -> Price | None:
    """The list price. A server of one's own that speaks a provider's language has none."""
    usage = genai_prices.Usage(input_tokens=1, output_tokens=1)
    try:
        if base_url is None:
            calculated = genai_prices.calc_price(usage, model, provider_id=provider)
        else:
            calculated = genai_prices.calc_price(usage, model, provider_api_url=base_url)
    except LookupError:
        return None
    listed = calculated.model_price
    names = ("input_mtok", "output_mtok", "cache_read_mtok")
    said = [getattr(listed, name, None) for name in names]
    # A price with tiers rises with the length of a prompt, which sums of tokens do not tell: the first is the least.
    least = any(price is not None and not isinstance(price, Decimal) for price in said)
    tokens_in, tokens_out, cached = (getattr(price, "base", price) for price in said)
    if tokens_in is None or tokens_out is None:
        return None
    return Price(
        input_per_million=tokens_in,
        output_per_million=tokens_out,
        cached_input_per_million=cached,
        source=LISTED,
        least=least,
    )
