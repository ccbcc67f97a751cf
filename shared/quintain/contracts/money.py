"""Amounts of money: whole picodollars (10^-12 US dollars) in the ledger, US dollars where people read or write them."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from typing import Annotated

from pydantic import Field

from quintain.contracts.values import Whole

PICODOLLARS_PER_DOLLAR = 10**12

#: The largest limit in money: sums of picodollars stay within 64 bits.
MAX_COST_USD = 1_000_000

#: An amount in picodollars.
Picodollars = Annotated[Whole, Field(ge=0, le=MAX_COST_USD * PICODOLLARS_PER_DOLLAR)]

#: A limit in US dollars, as users write it.
MaxCostUsd = Annotated[float, Field(gt=0, le=MAX_COST_USD, allow_inf_nan=False, strict=True)]


def picodollars(dollars: Decimal | float) -> int:
    """Return an amount of US dollars in picodollars, rounded up, at most `MAX_COST_USD`."""
    amount = dollars if isinstance(dollars, Decimal) else Decimal(repr(dollars))
    whole = (amount * PICODOLLARS_PER_DOLLAR).to_integral_value(ROUND_CEILING)
    return max(0, min(int(whole), MAX_COST_USD * PICODOLLARS_PER_DOLLAR))


def to_dollars(amount: int) -> float:
    """Return an amount of picodollars in US dollars."""
    return float(Decimal(amount) / PICODOLLARS_PER_DOLLAR)


def dollars_text(amount: int) -> str:
    """Return an amount of picodollars as people read it, as in ``$0.0625``: whole cents, or four digits that count."""
    value = Decimal(amount) / PICODOLLARS_PER_DOLLAR
    if not value or abs(value) >= 1:
        return f"${value:,.2f}"
    digits = max(2, 3 - value.adjusted())
    text = f"{value:.{digits}f}"
    return f"${text.rstrip('0') if len(text.rstrip('0')) > 4 else f'{value:.2f}'}"
