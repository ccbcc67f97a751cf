"""What a limit in money lets a run do: what a call of each target reserves, and how many calls that leaves at once."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from quintain.config.prices import Price, known_prices
from quintain.config.targets import ModelTarget, TargetConfig
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.message import Message
from quintain.contracts.money import NO_LIMIT, dollars_text, picodollars, to_dollars
from quintain_runner.engine.run_settings import Inspection
from quintain_worker.cost_bound import CostRule

#: What a request has besides its question, in bytes, about.
_REQUEST_BYTES = 50


class CostLimitCheck(Message):
    """What a limit of so many US dollars means for the targets of a run.

    ``reservations_usd`` is the most that one call of each can cost, with a question of the usual size; so many calls of
    the dearest fit into the limit at once. ``advice`` names the setting with which more would, where there is one. With
    ``soft`` targets the limit is soft: the length of their answers is estimated.
    """

    max_cost_usd: float
    reservations_usd: dict[str, float] = Field(default_factory=dict)
    calls_at_once: int | None = None
    advice: str | None = None
    soft: list[str] = Field(default_factory=list)
    problems: list[str] = Field(default_factory=list)


def inspect_cost_limit(found: Inspection) -> CostLimitCheck | None:
    """Check the limit in money of a run, and add its problems to those that were found; None where it has none.

    On a fleet the configuration of the workers decides.
    """
    limit = found.options.max_cost_usd
    if limit is None and found.evaluation is not None:
        limit = found.evaluation.spec.max_cost_usd
    if limit is None or limit == NO_LIMIT or found.evaluation is None or found.config is None or found.is_on_fleet:
        return None
    targets = {name: target for name, target in found.config.targets.items() if name in found.called_targets}
    stats = found.dataset
    size = _REQUEST_BYTES + (0 if stats is None else stats.input_characters // max(1, stats.cases))
    checked = check_cost_limit(limit, targets, known_prices(targets), size)
    found.problems.extend(checked.problems)
    return checked


def check_cost_limit(
    max_cost_usd: float, targets: Mapping[str, TargetConfig], prices: Mapping[str, Price], body_bytes: int
) -> CostLimitCheck:
    """Check a limit in money for calls to these targets, with questions of so many bytes."""
    limit, found, problems, soft = picodollars(max_cost_usd), dict[str, int](), list[str](), list[str]()
    for name, target in targets.items():
        rule = CostRule.of_target(name, target, prices.get(name))
        bound = rule.bound(InvokeRequest(question="-"), body_bytes)
        if bound.amount is None:
            problems.append(f"max_cost_usd: the cost of {name} has no bound: {bound.problem}")
        else:
            found[name] = bound.amount
            if bound.is_estimate:
                soft.append(name)
            if bound.amount > limit:
                text = f"max_cost_usd: one call of {name} may cost {dollars_text(bound.amount)}, more than the limit of"
                problems.append(f"{text} {dollars_text(limit)}{_lower(name, target)}")
    dearest = max(found, key=lambda name: found[name], default="")
    return CostLimitCheck(
        max_cost_usd=max_cost_usd,
        reservations_usd={name: to_dollars(amount) for name, amount in found.items()},
        calls_at_once=limit // found[dearest] if dearest and found[dearest] else None,
        advice=_lower(dearest, targets[dearest]).removeprefix("; ") or None if dearest else None,
        soft=soft,
        problems=problems,
    )


def _lower(name: str, target: TargetConfig) -> str:
    """Say which setting lowers what a call reserves."""
    limit = target.default_settings.max_tokens if isinstance(target, ModelTarget) else None
    return "" if limit is None else f"; a lower targets.{name}.max_tokens than {limit:,} lets more fit"
