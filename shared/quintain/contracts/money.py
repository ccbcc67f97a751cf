"""Amounts of money: whole picodollars (10^-12 US dollars) in the ledger, US dollars where people read or write them."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Final, Literal

from pydantic import Field, FiniteFloat

from quintain.contracts.message import Message
from quintain.contracts.values import Text, Whole

PICODOLLARS_PER_DOLLAR = 10**12

#: The largest limit in money: sums of picodollars stay within 64 bits.
MAX_COST_USD = 1_000_000

#: The least limit in US dollars, one picodollar: no call fits in it.
LEAST_COST_USD: Final = 1e-12

#: An amount in picodollars.
Picodollars = Annotated[Whole, Field(ge=0, le=MAX_COST_USD * PICODOLLARS_PER_DOLLAR)]

#: The part of a limit in money at which a session is near it.
WarnAt = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)]

#: A limit in US dollars, as users write it.
MaxCostUsd = Annotated[float, Field(gt=0, le=MAX_COST_USD, allow_inf_nan=False, strict=True)]


def picodollars(dollars: Decimal | float) -> int:
    """Return an amount of US dollars in picodollars, rounded up, at most `MAX_COST_USD`."""
    amount = dollars if isinstance(dollars, Decimal) else _exact(dollars)
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


#: What is written instead of a limit in US dollars to take one away.
NO_LIMIT: Final = "none"
NoLimit = Literal["none"]

#: Tokens in a million, as prices count them.
_MILLION = 10**6

PriceUsd = Annotated[FiniteFloat, Field(ge=0)]


class HeldTries(Message):
    """So many tries of unknown bill for which US dollars are held, by their HTTP status or another cause."""

    cause: str
    tries: int
    usd: float


class CostTier(Message):
    """The most that a million tokens cost, in US dollars, in calls with more than ``above_input_tokens`` of input."""

    above_input_tokens: Annotated[Whole, Field(ge=0)] = 0
    input_usd: PriceUsd
    output_usd: PriceUsd


class CostTerms(Message):
    """What a call of a target can cost at most, as its worker reserves it, in US dollars.

    Input is a token for each byte of the request and ``added_tokens``, at most ``max_input_tokens``. Output is
    ``max_tokens``, unless the request has a limit of its own. ``tiers`` are their prices; without any, only the call
    itself costs. ``child_usd`` is the limit of the session for the call's own calls. ``problem`` says why the cost has
    no bound. ``is_estimate``: ``max_tokens`` is no limit but an estimate, so that calls may cost more.
    """

    per_call_usd: PriceUsd = 0.0
    tiers: list[CostTier] = Field(default_factory=list)
    added_tokens: Annotated[Whole, Field(ge=0)] = 0
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_input_tokens: Annotated[Whole, Field(ge=1)] | None = None
    child_usd: MaxCostUsd | None = None
    problem: Text | None = None
    is_estimate: bool = False

    def bound(self, body_bytes: int, max_tokens: int | None = None) -> int | None:
        """Return the most that a call costs whose request has so many bytes, in picodollars; None without a bound."""
        output = self.max_tokens if max_tokens is None else max_tokens
        if self.problem is not None or (output is None and self.tiers):
            return None
        tokens = body_bytes + self.added_tokens
        if self.max_input_tokens is not None:
            tokens = min(tokens, self.max_input_tokens)
        reached = [tier for tier in self.tiers if not tier.above_input_tokens or tokens > tier.above_input_tokens]
        costs = [tokens * _exact(tier.input_usd) + (output or 0) * _exact(tier.output_usd) for tier in reached]
        fixed = _exact(self.per_call_usd) + _exact(self.child_usd or 0.0)
        return picodollars(fixed + max(costs, default=Decimal(0)) / _MILLION)


def _exact(usd: float) -> Decimal:
    return Decimal(repr(usd))
