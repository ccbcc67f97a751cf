"""Estimates, before a run starts, how many calls and tokens it takes and what it costs. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic import Field

from quintain.config.prices import Price
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message
from quintain_runner.dataset.reader import DatasetStats
from quintain_runner.graders.base import judge_target_of
from quintain_runner.plan.trials import CallsEstimate, calling_graders, estimate_calls
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import JudgeGrader

#: Characters per token: the usual average for English text.
CHARACTERS_PER_TOKEN = 4

#: Approximate tokens of the rules that are added to a judge's prompt, and of its verdict.
_JUDGE_RULES_TOKENS, _VERDICT_TOKENS = 150, 60


class TokensEstimate(Message):
    """The tokens of one target, for its answers and its judgements together.

    ``output`` is None if the length of its answers is unknown. ``basis`` lists the assumptions of the estimate.
    """

    input: int
    output: int | None = None
    basis: list[str] = Field(default_factory=list)


class RunEstimate(Message):
    """The estimate of a run.

    ``tokens`` are by target. ``usd`` is the cost of the targets in ``usd_of``, those with a known price and known
    tokens, or None if there are none. ``left_out`` are the graders whose own code calls targets: their tokens and costs
    are unknown and not included.
    """

    calls: CallsEstimate
    tokens: dict[str, TokensEstimate]
    left_out: list[str] = Field(default_factory=list)
    usd: float | None = None
    usd_of: list[str] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateInput:
    """The data that an estimate is computed from.

    ``judge_prompts`` are the judges' instructions by grader name, and ``probed_usage`` the tokens of one probe call by
    target.
    """

    evaluation: Evaluation
    dataset: DatasetStats
    targets: Sequence[str]
    judge_targets: Mapping[str, str | None] = field(default_factory=dict)
    judge_prompts: Mapping[str, str] = field(default_factory=dict)
    probed_usage: Mapping[str, TokenUsage] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)


def estimate_run(inputs: EstimateInput) -> RunEstimate:
    """Estimate the calls, tokens and cost of a run.

    Example::

        estimate = estimate_run(EstimateInput(spec=evaluation.spec, dataset=stats, targets=["gpt-4o"]))
        print(estimate.calls.most, estimate.usd)
    """
    tokens = _estimate_tokens(inputs)
    trials = inputs.evaluation.trials_of(inputs.dataset.cases, targets=len(inputs.targets))
    known_prices = {
        name: inputs.prices[name] for name in tokens if name in inputs.prices and tokens[name].output is not None
    }
    costs = [
        price.of(TokenUsage(input=tokens[name].input, output=tokens[name].output or 0))
        for name, price in known_prices.items()
    ]
    return RunEstimate(
        calls=estimate_calls(inputs.evaluation, trials=trials),
        tokens=tokens,
        usd=float(sum(costs, Decimal(0))) if costs else None,
        usd_of=sorted(known_prices),
        left_out=[grader.name for grader in calling_graders(inputs.evaluation)],
    )


def _estimate_tokens(inputs: EstimateInput) -> dict[str, TokensEstimate]:
    """The tokens by target: the answers of each target under test, and the judgements of each judge."""
    totals: dict[str, TokensEstimate] = {}
    for target in inputs.targets:
        answers = _estimate_answers(inputs, target)
        _add_tokens(totals, target, answers)
        for grader in inputs.evaluation.spec.graders:
            if isinstance(grader, JudgeGrader):
                judge = judge_target_of(grader, target, inputs.judge_targets)
                _add_tokens(totals, judge, _estimate_judgements(inputs, grader, answers.output))
    return totals


def _estimate_answers(inputs: EstimateInput, target: str) -> TokensEstimate:
    """The tokens of a target's answers; their length comes from the probe, else from the expected answers."""
    dataset, repeats = inputs.dataset, inputs.evaluation.spec.repeats
    count = inputs.evaluation.trials_of(dataset.cases, targets=1)
    probed_usage = inputs.probed_usage.get(target)
    input_tokens = _token_count(dataset.input_characters * repeats)
    if probed_usage is not None:
        output = probed_usage.output * count
        return TokensEstimate(input=input_tokens, output=output, basis=["answers as long as in the probe"])
    expected_tokens = _token_count(dataset.expected_characters * repeats)
    if not expected_tokens:
        return TokensEstimate(input=input_tokens, basis=["the length of its answers is unknown; a probe measures it"])
    return TokensEstimate(input=input_tokens, output=expected_tokens, basis=["answers as long as the expected ones"])


def _estimate_judgements(inputs: EstimateInput, grader: JudgeGrader, answer_tokens: int | None) -> TokensEstimate:
    """The tokens of a judge for all answers of one target."""
    dataset, repeats = inputs.dataset, inputs.evaluation.spec.repeats
    count = inputs.evaluation.trials_of(dataset.cases, targets=1)
    shown = _token_count((dataset.input_characters + dataset.expected_characters) * repeats) + (answer_tokens or 0)
    prompt_tokens = _token_count(len(inputs.judge_prompts.get(grader.name, ""))) + _JUDGE_RULES_TOKENS
    basis = [f"verdicts of {_VERDICT_TOKENS} tokens"]
    return TokensEstimate(input=shown + prompt_tokens * count, output=_VERDICT_TOKENS * count, basis=basis)


def _add_tokens(totals: dict[str, TokensEstimate], target: str, more: TokensEstimate) -> None:
    """Add an estimate to the total of a target."""
    previous = totals.get(target)
    if previous is None:
        totals[target] = more
        return
    unknown = previous.output is None or more.output is None
    totals[target] = TokensEstimate(
        input=previous.input + more.input,
        output=None if unknown else (previous.output or 0) + (more.output or 0),
        basis=list(dict.fromkeys([*previous.basis, *more.basis])),
    )


def _token_count(characters: int) -> int:
    """The approximate number of tokens in a text of this many characters."""
    return math.ceil(characters / CHARACTERS_PER_TOKEN)
