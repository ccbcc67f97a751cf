"""The cost of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple

from pydantic import Field

from quintain.config.prices import Price
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.session import TargetUsage

#: Amounts below one dollar are shown with four decimal places, larger ones with two.
_CENT_QUANTUM, _SUBDOLLAR_QUANTUM = Decimal("0.01"), Decimal("0.0001")


class LineUsage(NamedTuple):
    """The calls and tokens in one line of a table; a cost in the same line is the cost of these calls."""

    calls: int
    input_tokens: int
    output_tokens: int


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

    @property
    def usage(self) -> LineUsage:
        """The calls that the cost counts, and their tokens."""
        return LineUsage(self.calls, self.token_usage.input, self.token_usage.output)


class Cost(Message):
    """The cost of a run in US dollars, judges included, in total and by target; ``usd`` is None if no called target has
    a price.

    ``at_least`` says that the real cost may be higher.
    """

    usd: float | None = None
    at_least: bool = False
    targets: dict[str, TargetCost] = Field(default_factory=dict)


def total_usage(sessions: Iterable[Mapping[str, TargetUsage]]) -> dict[str, TargetUsage]:
    """The usage of several sessions by target."""
    total: dict[str, TargetUsage] = {}
    for session in sessions:
        for name, usage in session.items():
            sum_so_far = total.get(name, TargetUsage())
            total[name] = TargetUsage(
                calls=sum_so_far.calls + usage.calls,
                counted=sum_so_far.counted + usage.counted,
                token_usage=sum_so_far.token_usage + usage.token_usage,
                made_twice=_sum_known(sum_so_far.made_twice, usage.made_twice),
            )
    return total


def _sum_known(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


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
