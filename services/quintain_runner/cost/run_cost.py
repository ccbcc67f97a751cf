"""The cost of a run for each target: the ledger's token counts multiplied by the known prices. No I/O.

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

#: Amounts below one dollar are shown with four decimal places, larger ones with two.
_CENT_QUANTUM, _SUBDOLLAR_QUANTUM = Decimal("0.01"), Decimal("0.0001")


class TargetCost(Message):
    """The cost of the calls of one target, in US dollars; ``usd`` is None if its price is unknown.

    ``counted_calls`` is the number of calls with known tokens. ``at_least`` says that the real cost may be higher.
    """

    calls: int
    counted_calls: int
    token_usage: TokenUsage
    price: Price | None = None
    usd: float | None = None
    at_least: bool = False


class Cost(Message):
    """The cost of a run in US dollars, judges included, in total and by target; ``usd`` is None if no called target has
    a price.

    ``at_least`` says that the real cost may be higher.
    """

    usd: float | None = None
    at_least: bool = False
    targets: dict[str, TargetCost] = Field(default_factory=dict)


def run_cost(spending: Mapping[str, TargetUsage], prices: Mapping[str, Price], *, complete: bool = True) -> Cost:
    """The cost of the usage of a run, by target.

    ``spending`` is the usage by target; ``complete`` is False if it lacks some calls of the run, as those of earlier
    sessions.
    """
    targets = {name: _target_cost(usage, prices.get(name)) for name, usage in spending.items()}
    known = [prices[name].of(usage.token_usage) for name, usage in spending.items() if name in prices]
    return Cost(
        usd=float(sum(known, Decimal(0))) if known else None,
        at_least=not complete or any(cost.at_least for cost in targets.values()),
        targets=targets,
    )


def _target_cost(usage: TargetUsage, price: Price | None) -> TargetCost:
    """The cost of one target's calls."""
    return TargetCost(
        calls=usage.calls,
        counted_calls=usage.counted,
        token_usage=usage.token_usage,
        price=price,
        usd=None if price is None else float(price.of(usage.token_usage)),
        at_least=usage.calls > 0 if price is None else price.least or usage.counted < usage.calls,
    )


def dollars(usd: float | None, *, at_least: bool = False) -> str:
    """Format an amount of US dollars, such as ``$12.34`` or ``≥ $0.0021``; a dash for None."""
    if usd is None:
        return "-"
    amount = Decimal(str(usd))
    shown = amount.quantize(_CENT_QUANTUM if amount >= 1 or not amount else _SUBDOLLAR_QUANTUM)
    return f"{'≥ ' if at_least else ''}${shown:,}"
