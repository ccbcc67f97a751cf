"""The cost of a run for each target: tokens of the ledger multiplied by the known prices. No I/O.

Calls without a known price or token count are left out, and the total is then marked as a minimum.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from pydantic import Field

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.session import TargetUsage
from quintain_runner.cost.prices import Price

#: Amounts under a dollar have as many digits as it takes to see them.
_CENT_QUANTUM, _SUBDOLLAR_QUANTUM = Decimal("0.01"), Decimal("0.0001")


class TargetCost(Message):
    """What the calls of one target cost, in US dollars; None where its price is not known.

    ``counted_calls`` came with their tokens. ``at_least``: it may have been more.
    """

    calls: int
    counted_calls: int
    token_usage: TokenUsage
    price: Price | None = None
    usd: float | None = None
    at_least: bool = False


class Cost(Message):
    """What a run cost, judges and all, by the target that was called; None where no target called has a price."""

    usd: float | None = None
    at_least: bool = False
    targets: dict[str, TargetCost] = Field(default_factory=dict)


def run_cost(spending: Mapping[str, TargetUsage], prices: Mapping[str, Price], *, complete: bool = True) -> Cost:
    """The cost of what was spent; ``complete`` is False where calls of the run are not in it."""
    targets = {name: _target_cost(spend, prices.get(name)) for name, spend in spending.items()}
    known = [prices[name].of(spend.token_usage) for name, spend in spending.items() if name in prices]
    return Cost(
        usd=float(sum(known, Decimal(0))) if known else None,
        at_least=not complete or any(cost.at_least for cost in targets.values()),
        targets=targets,
    )


def _target_cost(spend: TargetUsage, price: Price | None) -> TargetCost:
    return TargetCost(
        calls=spend.calls,
        counted_calls=spend.counted,
        token_usage=spend.token_usage,
        price=price,
        usd=None if price is None else float(price.of(spend.token_usage)),
        at_least=spend.calls > 0 if price is None else price.least or spend.counted < spend.calls,
    )


def dollars(usd: float | None, *, at_least: bool = False) -> str:
    """An amount to show: two digits after the point, four under a dollar; a dash where it is not known."""
    if usd is None:
        return "-"
    amount = Decimal(str(usd))
    shown = amount.quantize(_CENT_QUANTUM if amount >= 1 or not amount else _SUBDOLLAR_QUANTUM)
    return f"{'≥ ' if at_least else ''}${shown:,}"
