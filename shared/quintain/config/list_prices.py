"""The list prices of models, from ``genai-prices``. No I/O."""

from __future__ import annotations

import importlib.metadata
from decimal import Decimal

import genai_prices
from genai_prices.types import TieredPrices

from quintain.config.prices import Price

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
    return Price(
        input_per_million=tokens_in,
        output_per_million=tokens_out,
        cached_input_per_million=cached,
        cache_write_per_million=written,
        source=LISTED,
        least=is_minimum,
        least_up_to=min(tier_starts, default=None),
    )
