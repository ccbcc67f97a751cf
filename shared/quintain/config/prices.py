"""Token prices of targets: the configured price, or else the list price of ``genai-prices``. No I/O."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated, cast

import genai_prices
from genai_prices.types import TieredPrices
from pydantic import PlainSerializer

from quintain.config.targets import AnthropicTarget, OpenAITarget, PydanticAITarget, TargetConfig
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message

_MILLION = Decimal(1_000_000)

#: More tokens of one kind than a call can have.
MAX_PLAUSIBLE_TOKENS = 100_000_000

#: An amount of US dollars: computed as a Decimal, serialized as a JSON number.
Amount = Annotated[Decimal, PlainSerializer(float, return_type=float)]

#: The source of a configured price, as stored in ``run.json``.
CONFIGURED = "configuration"

#: The module with the list prices. Imported on demand: its package is large, and only models have list prices.
_LIST_PRICES = "quintain.config.prices"


class Price(Message):
    """Prices in US dollars per million tokens, and per call.

    Where ``cached_input_per_million`` or ``cache_write_per_million`` is None, input tokens that came from the
    provider's cache, or that it put there, cost as much as the others. ``source`` is `CONFIGURED` or the list with its
    version. ``dearest_input_per_million`` and ``dearest_output_per_million`` are the most that a token can cost, in any
    tier. ``context_window`` is how many tokens the model reads at most, where that is known. ``least`` says that some
    calls may cost more: those with more than ``least_up_to`` input tokens, where that is known.
    """

    input_per_million: Amount = Decimal(0)
    output_per_million: Amount = Decimal(0)
    per_call: Amount = Decimal(0)
    cached_input_per_million: Amount | None = None
    cache_write_per_million: Amount | None = None
    dearest_input_per_million: Amount | None = None
    dearest_output_per_million: Amount | None = None
    context_window: int | None = None
    source: str = CONFIGURED
    least: bool = False
    least_up_to: int | None = None

    def of(self, usage: TokenUsage, calls: int = 0) -> Decimal:
        """The cost of these tokens and of so many calls, in US dollars."""
        cached = min(usage.cached or 0, usage.input)
        written = min(usage.cache_write or 0, usage.input - cached)
        cost = (usage.input - cached - written) * self.input_per_million + usage.output * self.output_per_million
        for tokens, price in ((cached, self.cached_input_per_million), (written, self.cache_write_per_million)):
            cost += tokens * (self.input_per_million if price is None else price)
        return calls * self.per_call + cost / _MILLION

    def most(self, input_tokens: int, output_tokens: int) -> Decimal:
        """The most that a call with so many tokens can cost, in US dollars."""
        others = (self.cached_input_per_million, self.cache_write_per_million, self.dearest_input_per_million)
        dearest_input = max(self.input_per_million, *(price for price in others if price is not None), Decimal(0))
        dearest_output = max(self.output_per_million, self.dearest_output_per_million or self.output_per_million)
        return self.per_call + (input_tokens * dearest_input + output_tokens * dearest_output) / _MILLION

    def of_call(self, usage: TokenUsage | None) -> float | None:
        """The cost of one call with this usage, in US dollars; None if it is not known.

        Counts that no call has, below zero or above `MAX_PLAUSIBLE_TOKENS`, say nothing.
        """
        if not (self.input_per_million or self.output_per_million):
            return float(self.per_call)
        if usage is None or not all(
            0 <= count <= MAX_PLAUSIBLE_TOKENS
            for count in (usage.input, usage.output, usage.cached or 0, usage.cache_write or 0)
        ):
            return None
        if self.least and (self.least_up_to is None or usage.input > self.least_up_to):
            return None
        return float(self.of(usage, 1))


def known_prices(targets: Mapping[str, TargetConfig]) -> dict[str, Price]:
    """The prices of the targets whose price is known, by target."""
    known = {name: target_price(target) for name, target in targets.items()}
    return {name: price for name, price in known.items() if price is not None}


def target_price(target: TargetConfig) -> Price | None:
    """The configured price of a target, or else its list price; None if it is unknown."""
    if (configured := target.price) is not None:
        return Price.model_validate(configured.model_dump())
    if isinstance(target, PydanticAITarget):
        vendor, _, model = target.model.partition(":")
    elif isinstance(target, OpenAITarget | AnthropicTarget):
        vendor, model = target.provider, target.model
    else:
        return None
    list_price = cast(
        "Callable[[str, str | None, str], Price | None]", importlib.import_module(_LIST_PRICES).list_price
    )
    return list_price(vendor, target.base_url, model)


#: The source of a list price, as stored in ``run.json``.
LISTED = f"genai-prices {importlib.metadata.version('genai-prices')}"


def list_price(provider: str, base_url: str | None, model: str) -> Price | None:
    """The list price of a model; None if it has none, as for a self-hosted server."""
    usage = genai_prices.Usage(input_tokens=1, output_tokens=1)
    try:
        if base_url is None:
            calculation = genai_prices.calc_price(usage, model, provider_id=provider)
        else:
            calculation = genai_prices.calc_price(usage, model, provider_api_url=base_url)
    except LookupError:
        return None
    model_price = calculation.model_price
    names = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    values = [getattr(model_price, name, None) for name in names]
    # Prices with tiers rise with the length of each prompt, which sums of tokens do not show: the first tier is the
    # minimum.
    is_minimum = any(price is not None and not isinstance(price, Decimal) for price in values)
    tier_starts = [tier.start for price in values if isinstance(price, TieredPrices) for tier in price.tiers]
    tokens_in, tokens_out, cached, written = (getattr(price, "base", price) for price in values)
    if tokens_in is None or tokens_out is None:
        return None
    dearest_in, dearest_out, _, dearest_write = (_dearest(price) for price in values)
    return Price(
        input_per_million=tokens_in,
        output_per_million=tokens_out,
        cached_input_per_million=cached,
        cache_write_per_million=written,
        dearest_input_per_million=max(each for each in (dearest_in, dearest_write, tokens_in) if each is not None),
        dearest_output_per_million=dearest_out,
        context_window=calculation.model.context_window,
        source=LISTED,
        least=is_minimum,
        least_up_to=min(tier_starts, default=None),
    )


def _dearest(price: object) -> Decimal | None:
    """Return the highest price of any tier."""
    if isinstance(price, TieredPrices):
        return max(price.base, *(tier.price for tier in price.tiers))
    return price if isinstance(price, Decimal) else None
