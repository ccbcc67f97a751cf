"""Token prices of targets: the configured price, or else the provider's list price from ``genai-prices``. No I/O."""

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

#: An amount of US dollars: computed as a Decimal, serialized as a JSON number.
Amount = Annotated[Decimal, PlainSerializer(float, return_type=float)]

#: The sources of a price, as stored in ``run.json``.
CONFIGURED = "configuration"
LISTED = f"genai-prices {importlib.metadata.version('genai-prices')}"


class Price(Message):
    """Prices in US dollars per million tokens.

    If ``cached_input_per_million`` is None, cached input tokens cost as much as the others. ``source`` is `CONFIGURED`
    or `LISTED`. ``least`` says that some calls may cost more, for example because the provider charges more for long
    prompts.
    """

    input_per_million: Amount
    output_per_million: Amount
    cached_input_per_million: Amount | None = None
    source: str = CONFIGURED
    least: bool = False

    def of(self, usage: TokenUsage) -> Decimal:
        """The cost of these tokens, in US dollars."""
        cached = min(usage.cached or 0, usage.input)
        cached_price = (
            self.input_per_million if self.cached_input_per_million is None else self.cached_input_per_million
        )
        uncached_cost = (usage.input - cached) * self.input_per_million + usage.output * self.output_per_million
        return (uncached_cost + cached * cached_price) / _MILLION


def known_prices(targets: Mapping[str, TargetConfig]) -> dict[str, Price]:
    """The prices of the targets whose price is known, by target."""
    known = {name: target_price(target) for name, target in targets.items()}
    return {name: price for name, price in known.items() if price is not None}


def target_price(target: TargetConfig) -> Price | None:
    """The configured price of a target, or else its list price; None if it is unknown."""
    if (configured := target.price) is not None:
        return Price.model_validate(configured.model_dump())
    if not isinstance(target, OpenAITarget | AnthropicTarget):
        return None
    return _list_price(target.provider, target.base_url, target.model)


def _list_price(provider: str, base_url: str | None, model: str) -> Price | None:
    """The list price of a model from ``genai-prices``; None if it has none, as for a self-hosted server."""
    usage = genai_prices.Usage(input_tokens=1, output_tokens=1)
    try:
        if base_url is None:
            calculation = genai_prices.calc_price(usage, model, provider_id=provider)
        else:
            calculation = genai_prices.calc_price(usage, model, provider_api_url=base_url)
    except LookupError:
        return None
    model_price = calculation.model_price
    names = ("input_mtok", "output_mtok", "cache_read_mtok")
    values = [getattr(model_price, name, None) for name in names]
    # Prices with tiers rise with the length of each prompt, which sums of tokens do not show: the first tier is the
    # minimum.
    is_minimum = any(price is not None and not isinstance(price, Decimal) for price in values)
    tokens_in, tokens_out, cached = (getattr(price, "base", price) for price in values)
    if tokens_in is None or tokens_out is None:
        return None
    return Price(
        input_per_million=tokens_in,
        output_per_million=tokens_out,
        cached_input_per_million=cached,
        source=LISTED,
        least=is_minimum,
    )
