"""What a run would take, before it: calls exactly as far as they are known, tokens and cost as an estimate. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic import Field

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message
from quintain_runner.dataset import DatasetFacts
from quintain_runner.evaluation import EvaluationSpec
from quintain_runner.grader_specs import CommandGrader, FunctionGrader, JudgeGrader, ProgramGrader, most_calls
from quintain_runner.grading import judge_of
from quintain_runner.prices import Price

#: A token is so many characters, about: what English text comes to with the usual tokenizers.
CHARACTERS_PER_TOKEN = 4

#: What a judge is told beside its prompt, and what it says, in tokens, about.
_RULES_TOKENS, _VERDICT_TOKENS = 150, 60


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


class Estimate(Message):
    """What a run would take. ``usd`` is what the targets with a known price would cost, None where there is none;
    ``usd_of`` are those targets. ``left_out`` are the graders that call by themselves: nobody knows what with, so
    their tokens and their cost are in none of it."""

    calls: CallsEstimate
    tokens: dict[str, TokensEstimate]
    left_out: list[str] = Field(default_factory=list)
    usd: float | None = None
    usd_of: list[str] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an estimate is made of.

    ``prompts`` are the judges' instructions by grader, ``measured`` what one call of a target took when it was probed,
    ``sessionless`` the functions that ask for no session, and so call nobody.
    """

    spec: EvaluationSpec
    facts: DatasetFacts
    targets: Sequence[str]
    judge_targets: Mapping[str, str | None] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, TokenUsage] = field(default_factory=dict)
    sessionless: frozenset[str] = frozenset()
    prices: Mapping[str, Price] = field(default_factory=dict)


def estimate_plan(plan: Plan) -> Estimate:
    """What the run of this plan would take."""
    tokens = _tokens(plan)
    priced = {name: plan.prices[name] for name in tokens if name in plan.prices and tokens[name].output is not None}
    costs = [
        price.of(TokenUsage(input=tokens[name].input, output=tokens[name].output or 0))
        for name, price in priced.items()
    ]
    return Estimate(
        calls=_calls(plan),
        tokens=tokens,
        usd=float(sum(costs, Decimal(0))) if costs else None,
        usd_of=sorted(priced),
        left_out=[grader.name for grader in _callers(plan)],
    )


def _calls(plan: Plan) -> CallsEstimate:
    answers = plan.facts.cases * len(plan.targets) * plan.spec.repeats
    most = sum(most_calls(grader) for grader in plan.spec.graders if grader.name not in plan.sessionless)
    # Who may call once is thought to; a higher limit is a bound, and tells nothing.
    known = all(grader.target.max_calls <= 1 for grader in _callers(plan))
    return CallsEstimate(answers=answers, most=answers * (1 + most), typical=answers * (1 + most) if known else None)


def _callers(plan: Plan) -> list[ProgramGrader]:
    programs = [grader for grader in plan.spec.graders if isinstance(grader, CommandGrader | FunctionGrader)]
    return [grader for grader in programs if grader.name not in plan.sessionless and grader.target.max_calls]


def _tokens(plan: Plan) -> dict[str, TokensEstimate]:
    sums: dict[str, TokensEstimate] = {}
    for target in plan.targets:
        answers = _answers(plan, target)
        _add(sums, target, answers)
        for grader in plan.spec.graders:
            if isinstance(grader, JudgeGrader):
                judge = judge_of(grader, target, plan.judge_targets)
                _add(sums, judge, _judgements(plan, grader, answers.output))
    return sums


def _answers(plan: Plan, target: str) -> TokensEstimate:
    facts, repeats = plan.facts, plan.spec.repeats
    measured = plan.measured.get(target)
    asked = _in_tokens(facts.asked_characters * repeats)
    if measured is not None:
        output = measured.output * facts.cases * repeats
        return TokensEstimate(input=asked, output=output, basis=["answers as long as the probe's"])
    expected = _in_tokens(facts.expected_characters * repeats)
    if not expected:
        return TokensEstimate(input=asked, basis=["how long its answers are, a probe measures"])
    return TokensEstimate(input=asked, output=expected, basis=["answers as long as what is expected"])


def _judgements(plan: Plan, grader: JudgeGrader, answered: int | None) -> TokensEstimate:
    facts, repeats = plan.facts, plan.spec.repeats
    count = facts.cases * repeats
    shown = _in_tokens((facts.asked_characters + facts.expected_characters) * repeats) + (answered or 0)
    told = _in_tokens(len(plan.prompts.get(grader.name, ""))) + _RULES_TOKENS
    basis = [f"verdicts of {_VERDICT_TOKENS} tokens"]
    return TokensEstimate(input=shown + told * count, output=_VERDICT_TOKENS * count, basis=basis)


def _add(sums: dict[str, TokensEstimate], target: str, more: TokensEstimate) -> None:
    before = sums.get(target)
    if before is None:
        sums[target] = more
        return
    unknown = before.output is None or more.output is None
    sums[target] = TokensEstimate(
        input=before.input + more.input,
        output=None if unknown else (before.output or 0) + (more.output or 0),
        basis=list(dict.fromkeys([*before.basis, *more.basis])),
    )


def _in_tokens(characters: int) -> int:
    return math.ceil(characters / CHARACTERS_PER_TOKEN)
