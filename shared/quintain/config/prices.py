"""Token prices of targets: the configured price, or else the list price of ``genai-prices``. No I/O."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, PlainSerializer

from quintain.config.program_targets import ProgramTarget
from quintain.config.targets import (
    AnthropicTarget,
    ModelTarget,
    OpenAITarget,
    PydanticAITarget,
    TargetConfig,
    TargetTarget,
)
from quintain.config.vendors import VENDORS
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message
from quintain.runtime.lazy_module import LazyModule

if TYPE_CHECKING:
    import genai_prices
    from genai_prices import data_snapshot, types
else:
    genai_prices = LazyModule("genai_prices")
    data_snapshot, types = LazyModule("genai_prices.data_snapshot"), LazyModule("genai_prices.types")

_MILLION = Decimal(1_000_000)

#: The hosts of the providers that say in writing that a failed request is not billed, with where: "no credits will be
#: deducted" for an answer without tokens or with an error (https://openrouter.ai/docs/features/zero-completion-insurance).
FREE_FAILURES: Final = frozenset({"openrouter.ai"})

#: An amount of US dollars: computed as a Decimal, serialized as a JSON number.
Amount = Annotated[Decimal, PlainSerializer(float, return_type=float)]

#: The source of a configured price, as stored in ``run.json``; and of that of a target whose own calls have theirs.
CONFIGURED, CHILD_SESSION = "configuration", "child session"


class TokenPrices(Message):
    """Prices in US dollars per million tokens.

    Where ``cached_input_per_million`` or ``cache_write_per_million`` is None, input tokens that came from the
    provider's cache, or that it put there, cost as much as the others. Where ``cache_write_1h_per_million`` is None,
    nobody knows what tokens cost that it put there for an hour.
    """

    input_per_million: Amount = Decimal(0)
    output_per_million: Amount = Decimal(0)
    cached_input_per_million: Amount | None = None
    cache_write_per_million: Amount | None = None
    cache_write_1h_per_million: Amount | None = None

    def of_tokens(self, usage: TokenUsage) -> Decimal:
        """The cost of these tokens, in US dollars; those of an unknown price cost as much as those known best."""
        written_price = self._or_input(self.cache_write_per_million)
        hour_price = self.cache_write_1h_per_million
        cached, written, hour = _input_kinds(usage)
        cost = (usage.input - cached - written - hour) * self.input_per_million
        cost += cached * self._or_input(self.cached_input_per_million) + written * written_price
        cost += hour * (written_price if hour_price is None else hour_price)
        return (cost + usage.output * self.output_per_million) / _MILLION

    def saved(self, usage: TokenUsage) -> Decimal:
        """What the provider's cache saved of these tokens, in US dollars: less than 0 where writing cost more."""
        without_cache = (usage.input * self.input_per_million + usage.output * self.output_per_million) / _MILLION
        return without_cache - self.of_tokens(usage)

    def dearest_input(self, *, for_an_hour: bool) -> Decimal:
        """The most that a million tokens of input cost; ``for_an_hour``: also those that are cached for so long."""
        hour = self.cache_write_1h_per_million if for_an_hour else None
        kinds = (self.cached_input_per_million, self.cache_write_per_million, hour)
        return max(self.input_per_million, *(price for price in kinds if price is not None), Decimal(0))

    def _or_input(self, price: Decimal | None) -> Decimal:
        return self.input_per_million if price is None else price


class PriceTier(TokenPrices):
    """The prices of all tokens of a call with more than ``above_input_tokens`` input tokens."""

    above_input_tokens: int


class Price(TokenPrices):
    """The prices of tokens, and of each call in US dollars.

    ``source`` is `CONFIGURED`, `CHILD_SESSION` or the list with its version. ``context_window`` is how many tokens the
    model reads at most, where that is known. ``tiers`` are those above the first, in ascending order: which of them
    counts depends on the input of each call, so that a sum of several calls' tokens has at least the cost by the first.
    ``failed_tries`` are ``free`` where the provider does not bill what it answers with an error.
    """

    per_call: Amount = Decimal(0)
    context_window: int | None = None
    source: str = CONFIGURED
    failed_tries: Annotated[Literal["free", "held"] | None, Field(exclude=True)] = None
    tiers: list[PriceTier] = Field(default_factory=list)

    def of(self, usage: TokenUsage, calls: int = 0) -> Decimal:
        """The cost of these tokens and of so many calls, in US dollars: by the first tier, as of short prompts."""
        return calls * self.per_call + self.of_tokens(usage)

    def most(self, input_tokens: int, output_tokens: int, *, for_an_hour: bool = False) -> Decimal:
        """The most that a call with so many tokens can cost, in US dollars, in any tier that it can reach.

        ``for_an_hour``: it may have the provider cache its input for so long.
        """
        reached = [tier for tier in self.tiers if input_tokens > tier.above_input_tokens]
        most = max(
            input_tokens * tier.dearest_input(for_an_hour=for_an_hour) + output_tokens * tier.output_per_million
            for tier in (self, *reached)
        )
        return self.per_call + most / _MILLION

    def of_call(self, usage: TokenUsage | None) -> float | None:
        """The cost of one call with this usage, in US dollars; None if it is not known, or counts what no call has."""
        if not (self.input_per_million or self.output_per_million):
            return float(self.per_call)
        if usage is None or not usage.is_plausible:
            return None
        tier = self.tier_of(usage)
        if usage.cache_write_1h and tier.cache_write_1h_per_million is None:
            return None
        return float(self.per_call + tier.of_tokens(usage))

    def tier_of(self, usage: TokenUsage) -> TokenPrices:
        """The prices of one call with this usage."""
        reached = [tier for tier in self.tiers if usage.input > tier.above_input_tokens]
        return reached[-1] if reached else self


def _input_kinds(usage: TokenUsage) -> tuple[int, int, int]:
    """Return how many tokens of the input came from a cache, went to one, and went to one for an hour."""
    cached = min(usage.cached or 0, usage.input)
    written = min(usage.cache_write or 0, usage.input - cached)
    hour = min(usage.cache_write_1h or 0, written)
    return cached, written - hour, hour


def known_prices(targets: Mapping[str, TargetConfig]) -> dict[str, Price]:
    """The prices of the targets whose price is known, by target."""
    known = {name: target_price(target) for name, target in targets.items()}
    return {name: price for name, price in known.items() if price is not None}


def target_price(target: TargetConfig) -> Price | None:
    """The configured price of a target, or else its list price; None if it is unknown.

    A program or hosted target with a child session costs nothing by itself: its calls there are priced as those of
    their targets.
    """
    price = _price_of(target)
    if price is None or price.failed_tries is not None or not isinstance(target, ModelTarget):
        return price
    is_free = urlsplit(target.url or "").hostname in FREE_FAILURES
    return price.model_copy(update={"failed_tries": "free"}) if is_free else price


def _price_of(target: TargetConfig) -> Price | None:
    if (configured := target.price) is not None:
        return Price.model_validate(configured.model_dump())
    if isinstance(target, PydanticAITarget):
        vendor, _, model = target.model.partition(":")
    elif isinstance(target, OpenAITarget):
        vendor, model = VENDORS[target.provider].price_list or target.provider, target.model
    elif isinstance(target, AnthropicTarget):
        vendor, model = target.provider, target.model
    else:
        has_child = isinstance(target, ProgramTarget | TargetTarget) and target.child_session is not None
        return Price(source=CHILD_SESSION) if has_child else None
    return list_price(vendor, target.base_url, model)


@functools.cache
def list_source() -> str:
    """Return the source of a list price, as stored in ``run.json``."""
    return f"genai-prices {importlib.metadata.version('genai-prices')}"


#: The hosts of servers on this machine, which no list has.
_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})

#: The prices of the list, in the order of `TokenPrices`.
_LIST_NAMES = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok")


def list_price(provider: str, base_url: str | None, model: str) -> Price | None:
    """The list price of a model, as of today; None if it has none, as for a self-hosted server."""
    if base_url is not None and urlsplit(base_url).hostname in _LOCAL_HOSTS:
        return None
    usage = genai_prices.Usage(input_tokens=1, output_tokens=1)
    try:
        if base_url is None:
            calculation = genai_prices.calc_price(usage, model, provider_id=provider)
        else:
            calculation = genai_prices.calc_price(usage, model, provider_api_url=base_url)
    except LookupError:
        return None
    listed = [getattr(calculation.model_price, name, None) for name in _LIST_NAMES]
    if listed[0] is None or listed[1] is None:
        return None
    starts = {tier.start for price in listed if isinstance(price, types.TieredPrices) for tier in price.tiers}
    return Price(
        **_prices_above(listed, 0),
        tiers=[PriceTier(**_prices_above(listed, start + 1), above_input_tokens=start) for start in sorted(starts)],
        context_window=calculation.model.context_window,
        source=list_source(),
    )


def _prices_above(listed: Sequence[object], input_tokens: int) -> dict[str, Any]:
    """Return the list's prices of a call with so many input tokens, as fields of `TokenPrices`."""
    prices: dict[str, Any] = {}
    for name, price in zip(TokenPrices.model_fields, listed, strict=True):
        prices[name] = price
        if isinstance(price, types.TieredPrices):
            prices[name] = price.base
            for tier in price.tiers:
                prices[name] = tier.price if input_tokens > tier.start else prices[name]
    return prices


def source_text(price: Price) -> str:
    """Say where a price is from: a list with the date of its newest price, than which it is no older."""
    if price.source != list_source():
        return price.source
    today = datetime.now(UTC).date()
    models = [model for provider in data_snapshot.get_snapshot().providers for model in provider.models]
    conditions = [price.constraint for model in models if isinstance(model.prices, list) for price in model.prices]
    dates = [each.start_date for each in conditions if isinstance(each, types.StartDateConstraint)]
    return f"{price.source}, prices of {max(each for each in dates if each <= today)}"
