"""Estimates what a run will take before it starts: the number of calls, the tokens and the cost. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic import Field

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message
from quintain_runner.cost.prices import Price
from quintain_runner.dataset.reader import DatasetStats
from quintain_runner.graders.base import judge_target_of
from quintain_runner.spec.evaluation import EvaluationSpec
from quintain_runner.spec.graders import CommandGrader, FunctionGrader, JudgeGrader, ProgramGrader, max_calls_of

#: A token is so many characters, about: what English text comes to with the usual tokenizers.
CHARACTERS_PER_TOKEN = 4

#: What a judge is told beside its prompt, and what it says, in tokens, about.
_JUDGE_RULES_TOKENS, _VERDICT_TOKENS = 150, 60


class CallsEstimate(Message):
    """Calls of the whole run: ``answers`` of the targets, ``most`` with every grader at its limit.

    ``typical`` is None where a grader decides by itself how often it calls.
    """

    answers: int
    most: int
    typical: int | None = None


class TokensEstimate(Message):
    """Tokens of one target, answers and judgements together; ``output`` is None where nothing tells how long its
    answers are. ``basis`` says what it was reckoned from."""

    input: int
    output: int | None = None
    basis: list[str] = Field(default_factory=list)


class RunEstimate(Message):
    """What a run would take. ``usd`` is what the targets with a known price would cost, None where there is none;
    ``usd_of`` are those targets. ``left_out`` are the graders that call by themselves: nobody knows what with, so
    their tokens and their cost are in none of it."""

    calls: CallsEstimate
    tokens: dict[str, TokensEstimate]
    left_out: list[str] = Field(default_factory=list)
    usd: float | None = None
    usd_of: list[str] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateInput:
    """What an estimate is made of.

    ``judge_prompts`` are the judges' instructions by grader, ``probed_usage`` what one call of a target took when it
    was probed, ``sessionless_graders`` the functions that ask for no session, and so call nobody.
    """

    spec: EvaluationSpec
    dataset: DatasetStats
    targets: Sequence[str]
    judge_targets: Mapping[str, str | None] = field(default_factory=dict)
    judge_prompts: Mapping[str, str] = field(default_factory=dict)
    probed_usage: Mapping[str, TokenUsage] = field(default_factory=dict)
    sessionless_graders: frozenset[str] = frozenset()
    prices: Mapping[str, Price] = field(default_factory=dict)


def estimate_run(inputs: EstimateInput) -> RunEstimate:
    """What the run of this plan would take."""
    tokens = _estimate_tokens(inputs)
    known_prices = {
        name: inputs.prices[name] for name in tokens if name in inputs.prices and tokens[name].output is not None
    }
    costs = [
        price.of(TokenUsage(input=tokens[name].input, output=tokens[name].output or 0))
        for name, price in known_prices.items()
    ]
    return RunEstimate(
        calls=_estimate_calls(inputs),
        tokens=tokens,
        usd=float(sum(costs, Decimal(0))) if costs else None,
        usd_of=sorted(known_prices),
        left_out=[grader.name for grader in _calling_graders(inputs)],
    )


def _estimate_calls(inputs: EstimateInput) -> CallsEstimate:
    answers = inputs.dataset.cases * len(inputs.targets) * inputs.spec.repeats
    most = sum(max_calls_of(grader) for grader in inputs.spec.graders if grader.name not in inputs.sessionless_graders)
    # Who may call once is thought to; a higher limit is a bound, and tells nothing.
    known = all(grader.target.max_calls <= 1 for grader in _calling_graders(inputs))
    return CallsEstimate(answers=answers, most=answers * (1 + most), typical=answers * (1 + most) if known else None)


def _calling_graders(inputs: EstimateInput) -> list[ProgramGrader]:
    programs = [grader for grader in inputs.spec.graders if isinstance(grader, CommandGrader | FunctionGrader)]
    return [grader for grader in programs if grader.name not in inputs.sessionless_graders and grader.target.max_calls]


def _estimate_tokens(inputs: EstimateInput) -> dict[str, TokensEstimate]:
    totals: dict[str, TokensEstimate] = {}
    for target in inputs.targets:
        answers = _estimate_answers(inputs, target)
        _add_tokens(totals, target, answers)
        for grader in inputs.spec.graders:
            if isinstance(grader, JudgeGrader):
                judge = judge_target_of(grader, target, inputs.judge_targets)
                _add_tokens(totals, judge, _estimate_judgements(inputs, grader, answers.output))
    return totals


def _estimate_answers(inputs: EstimateInput, target: str) -> TokensEstimate:
    dataset, repeats = inputs.dataset, inputs.spec.repeats
    probed_usage = inputs.probed_usage.get(target)
    input_tokens = _token_count(dataset.input_characters * repeats)
    if probed_usage is not None:
        output = probed_usage.output * dataset.cases * repeats
        return TokensEstimate(input=input_tokens, output=output, basis=["answers as long as the probe's"])
    expected_tokens = _token_count(dataset.expected_characters * repeats)
    if not expected_tokens:
        return TokensEstimate(input=input_tokens, basis=["how long its answers are, a probe measures"])
    return TokensEstimate(input=input_tokens, output=expected_tokens, basis=["answers as long as what is expected"])


def _estimate_judgements(inputs: EstimateInput, grader: JudgeGrader, answer_tokens: int | None) -> TokensEstimate:
    dataset, repeats = inputs.dataset, inputs.spec.repeats
    count = dataset.cases * repeats
    shown = _token_count((dataset.input_characters + dataset.expected_characters) * repeats) + (answer_tokens or 0)
    prompt_tokens = _token_count(len(inputs.judge_prompts.get(grader.name, ""))) + _JUDGE_RULES_TOKENS
    basis = [f"verdicts of {_VERDICT_TOKENS} tokens"]
    return TokensEstimate(input=shown + prompt_tokens * count, output=_VERDICT_TOKENS * count, basis=basis)


def _add_tokens(totals: dict[str, TokensEstimate], target: str, more: TokensEstimate) -> None:
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
    return math.ceil(characters / CHARACTERS_PER_TOKEN)
