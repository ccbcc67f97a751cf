"""Estimates the calls, tokens and cost of a run before it makes a call. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from pydantic import Field

from quintain.config.prices import Price, source_text
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.session import Usage
from quintain_runner.graders.judge_request import judge_instructions
from quintain_runner.graders.judge_sections import MARKS_CHARACTERS
from quintain_runner.graders.pairwise import pairwise_instructions
from quintain_runner.plan.cases import token_count
from quintain_runner.plan.dataset import DatasetStats
from quintain_runner.plan.trials import CallsEstimate, calling_graders, estimate_dataset
from quintain_runner.results.bill import SIMULATED_USER
from quintain_runner.spec.asking_graders import JudgeGrader, PairwiseGrader, SimilarGrader
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import GraderSpec, judges_of, single_graders

#: Approximate tokens of a judge's verdict.
_VERDICT_TOKENS = 60


class TokensEstimate(Message):
    """The tokens of one target, for its answers and its judgements together.

    ``output`` is None if the length of its answers is unknown. ``basis`` lists the assumptions of the estimate.
    """

    input: int
    output: int | None = None
    basis: list[str] = Field(default_factory=list)


class CostRange(Message):
    """The least and the most that a run may cost, in US dollars, without what is unknown; ``basis`` says by what.

    ``most_usd`` is None if the answers of a target have no limit.
    """

    least_usd: float
    most_usd: float | None = None
    basis: list[str] = Field(default_factory=list)


class RunEstimate(Message):
    """The estimate of a run.

    ``usd_range`` is between what it costs at least and at most; None if no target has a price.
    ``tokens`` are by target. ``usd`` is the cost of the targets in ``usd_of``, those with a known price and known
    tokens, or None if there are none; ``price_sources`` says where each target's price is from. ``left_out`` are the
    graders whose own code calls targets: their tokens and costs are unknown and not included.
    """

    calls: CallsEstimate
    tokens: dict[str, TokensEstimate]
    left_out: list[str] = Field(default_factory=list)
    usd: float | None = None
    usd_of: list[str] = Field(default_factory=list)
    price_sources: dict[str, str] = Field(default_factory=dict)
    usd_range: CostRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateInput:
    """The data that an estimate is computed from.

    ``agents`` are the targets whose answers have steps as a rule, which judges are shown.
    ``judge_prompts`` are the judges' instructions by grader name, and ``probed_usage`` the tokens of one probe call by
    target. ``earlier_usage`` is what calls of earlier rows took, and ``max_tokens`` limits answers, by target.
    """

    evaluation: Evaluation
    dataset: DatasetStats
    targets: Sequence[str]
    judge_targets: Mapping[str, str | None] = field(default_factory=dict)
    agents: frozenset[str] = frozenset()
    judge_prompts: Mapping[str, str] = field(default_factory=dict)
    probed_usage: Mapping[str, TokenUsage] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    earlier_usage: Mapping[str, Usage] = field(default_factory=dict)
    max_tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of trials of each target: each is judged once."""
        return self.evaluation.trials_of(self.dataset.cases, targets=1)

    def judge_characters(self, grader: JudgeGrader | PairwiseGrader) -> int:
        """How many characters a judge's instructions have, and the marks of what it is shown."""
        prompt = self.judge_prompts.get(grader.name, "")
        if isinstance(grader, PairwiseGrader):
            return len(pairwise_instructions(prompt)) + MARKS_CHARACTERS
        return len(judge_instructions(grader, prompt or grader.instructions or "")) + MARKS_CHARACTERS

    @property
    def answers(self) -> int:
        """The number of answers of each target: one in each turn."""
        conversations = self.dataset.conversations
        return self.count if conversations is None else conversations.turns * self.evaluation.spec.repeats


def estimate_run(inputs: EstimateInput) -> RunEstimate:
    """Estimate the calls, tokens and cost of a run."""
    tokens = _estimate_tokens(inputs)
    dataset, targets = inputs.dataset, len(inputs.targets)
    known_prices = {
        name: inputs.prices[name] for name in tokens if name in inputs.prices and tokens[name].output is not None
    }
    costs = [
        price.of(TokenUsage(input=tokens[name].input, output=tokens[name].output or 0))
        for name, price in known_prices.items()
    ]
    return RunEstimate(
        calls=estimate_dataset(inputs.evaluation, dataset, cases=dataset.cases, targets=targets),
        tokens=tokens,
        usd=float(sum(costs, Decimal(0))) if costs else None,
        usd_of=sorted(known_prices),
        usd_range=_estimate_range(inputs),
        price_sources={name: source_text(price) for name, price in inputs.prices.items() if name in tokens},
        left_out=[
            *(grader.name for grader in calling_graders(inputs.evaluation)),
            *([SIMULATED_USER] if inputs.dataset.user_targets else []),
        ],
    )


def _estimate_tokens(inputs: EstimateInput) -> dict[str, TokensEstimate]:
    """The tokens by target: the answers of each target under test, and the judgements of each judge."""
    totals: dict[str, TokensEstimate] = {}
    for target in inputs.targets:
        answers = _estimate_answers(inputs, target)
        _add_tokens(totals, target, answers)
        for grader, part, share in _graded_parts(inputs):
            shown = None if answers.output is None else round(answers.output * share)
            if isinstance(grader, JudgeGrader):
                for judge in judges_of(grader, target, inputs.judge_targets):
                    _add_tokens(totals, judge, _estimate_judgements(part, grader, shown))
            elif isinstance(grader, SimilarGrader | PairwiseGrader):
                (judge,) = judges_of(grader, target, inputs.judge_targets)
                _add_tokens(totals, judge, _estimate_asking(part, grader, shown))
    return totals


def _graded_parts(inputs: EstimateInput) -> Iterator[tuple[GraderSpec, EstimateInput, float]]:
    """Each grader with what it grades: the evaluation's all cases, and the cases' own as large a part of them as they
    are in, which may be more than all; and how large that part is."""
    yield from ((grader, inputs, 1.0) for grader in single_graders(inputs.evaluation.graders))
    dataset = inputs.dataset
    for own in dataset.own_graders.asking.values():
        share = own.graders / dataset.own_graders.counted
        part = replace(
            dataset,
            cases=round(dataset.cases * share),
            input_characters=round(dataset.input_characters * share),
            expected_characters=round(dataset.expected_characters * share),
        )
        yield own.longest, replace(inputs, dataset=part), share


def _estimate_answers(inputs: EstimateInput, target: str) -> TokensEstimate:
    """The tokens of a target's answers; their length comes from the probe, else from the expected answers."""
    dataset, repeats = inputs.dataset, inputs.evaluation.spec.repeats
    count = inputs.answers
    probed_usage = inputs.probed_usage.get(target)
    input_tokens = token_count(dataset.input_characters * repeats)
    if probed_usage is not None:
        output = probed_usage.output * count
        return TokensEstimate(input=input_tokens, output=output, basis=["answers as long as in the probe"])
    expected_tokens = token_count(dataset.expected_characters * repeats)
    if not expected_tokens:
        return TokensEstimate(input=input_tokens, basis=["the length of its answers is unknown; a probe measures it"])
    return TokensEstimate(input=input_tokens, output=expected_tokens, basis=["answers as long as the expected ones"])


def _estimate_judgements(inputs: EstimateInput, grader: JudgeGrader, answer_tokens: int | None) -> TokensEstimate:
    """The tokens of a judge for all answers of one target."""
    dataset, repeats = inputs.dataset, inputs.evaluation.spec.repeats
    count = inputs.count
    shown = token_count((dataset.input_characters + dataset.expected_characters) * repeats) + (answer_tokens or 0)
    shown = min(shown, token_count(grader.max_show_characters * count))
    prompt_tokens = token_count(inputs.judge_characters(grader))
    basis = [f"verdicts of {_VERDICT_TOKENS} tokens"]
    return TokensEstimate(input=shown + prompt_tokens * count, output=_VERDICT_TOKENS * count, basis=basis)


def _estimate_asking(
    inputs: EstimateInput, grader: SimilarGrader | PairwiseGrader, answer_tokens: int | None
) -> TokensEstimate:
    """The tokens of an embedding of all answers of one target, or of its part of the comparisons."""
    dataset, repeats = inputs.dataset, inputs.evaluation.spec.repeats
    if isinstance(grader, SimilarGrader):
        return TokensEstimate(input=token_count(dataset.expected_characters * repeats) + (answer_tokens or 0), output=0)
    calls = grader.most_calls(len(inputs.targets)) // len(inputs.targets)
    shown = token_count((dataset.input_characters + dataset.expected_characters) * repeats) + 2 * (answer_tokens or 0)
    prompt_tokens = token_count(inputs.judge_characters(grader))
    return TokensEstimate(
        input=calls * (shown + prompt_tokens * inputs.count),
        output=calls * _VERDICT_TOKENS * inputs.count,
        basis=[f"verdicts of {_VERDICT_TOKENS} tokens"],
    )


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


@dataclass(slots=True)
class _TokenRange:
    """The calls of a target, and the fewest and the most tokens of them; None where nothing limits them."""

    calls: int = 0
    least_input: int = 0
    least_output: int = 0
    most_input: int | None = 0
    most_output: int | None = 0

    def add(self, calls: int, characters: int, shown: tuple[int, int | None], output: tuple[int, int | None]) -> None:
        """Add calls with so many characters, and with so many tokens at least and at most besides, and of answers."""
        self.calls += calls
        self.least_input += token_count(characters) + shown[0]
        self.least_output += output[0]
        self.most_input = _sum(self.most_input, _sum(characters, shown[1]))
        self.most_output = _sum(self.most_output, output[1])

    def least(self, price: Price) -> Decimal:
        """The least that they cost."""
        return price.of(TokenUsage(input=self.least_input, output=self.least_output), self.calls)

    def most(self, price: Price) -> Decimal | None:
        """The most that they cost, if all are of one size; None where that is not known."""
        if not (price.input_per_million or price.output_per_million):
            return self.calls * price.per_call
        if self.most_input is None or self.most_output is None or not self.calls:
            return None
        return self.calls * price.most(-(-self.most_input // self.calls), -(-self.most_output // self.calls))


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _estimate_range(inputs: EstimateInput) -> CostRange | None:
    """The least and the most that the run costs by the targets whose price is known."""
    ranges, basis = _token_ranges(inputs), ["4 characters to 1 a token of input"]
    for name, tokens in ranges.items():
        usage, limit = inputs.earlier_usage.get(name), inputs.max_tokens.get(name)
        if usage is not None and usage.counted:
            tokens.least_output = tokens.most_output = round(usage.token_usage.output / usage.counted * tokens.calls)
            basis.append(f"answers of {name} as in {usage.counted:,} earlier calls")
        elif name not in inputs.probed_usage and name in inputs.prices:
            basis.append(f"answers of {name} up to {'any length' if limit is None else f'its max_tokens of {limit:,}'}")
    priced = [(tokens, inputs.prices[name]) for name, tokens in ranges.items() if name in inputs.prices]
    if not priced:
        return None
    most = [tokens.most(price) for tokens, price in priced]
    known = [each for each in most if each is not None]
    return CostRange(
        least_usd=float(sum((tokens.least(price) for tokens, price in priced), Decimal(0))),
        most_usd=float(sum(known, Decimal(0))) if len(known) == len(most) else None,
        basis=basis,
    )


def _token_ranges(inputs: EstimateInput) -> dict[str, _TokenRange]:
    """The tokens by target: of the answers of each target under test, and of the judgements of each judge."""
    ranges: defaultdict[str, _TokenRange] = defaultdict(_TokenRange)
    dataset, repeats = inputs.dataset, inputs.evaluation.spec.repeats
    asked, expected = dataset.input_characters * repeats, dataset.expected_characters * repeats
    answered, conversations = inputs.answers, dataset.conversations
    #: Each turn has the answers before it.
    shown_answers = 0 if conversations is None else conversations.shown_answers * repeats
    for target in inputs.targets:
        probed, limit = inputs.probed_usage.get(target), inputs.max_tokens.get(target)
        answers = (token_count(expected), None if limit is None else limit * answered)
        if probed is not None:
            answers = (probed.output * answered, probed.output * answered)
        shown = (0, 0 if not shown_answers else None if limit is None else limit * shown_answers)
        ranges[target].add(answered, asked, shown, answers)
        for grader, part, share in _graded_parts(inputs):
            least, most = round(answers[0] * share), None if answers[1] is None else round(answers[1] * share)
            _add_judgements(ranges, part, grader, target, (least, most))
    return ranges


def _add_judgements(
    ranges: defaultdict[str, _TokenRange],
    inputs: EstimateInput,
    grader: GraderSpec,
    target: str,
    answers: tuple[int, int | None],
) -> None:
    """Add what a grader asks about the answers of a target, which have so many tokens."""
    dataset, repeats, count = inputs.dataset, inputs.evaluation.spec.repeats, inputs.count
    asked, expected = dataset.input_characters * repeats, dataset.expected_characters * repeats
    if isinstance(grader, JudgeGrader):
        prompt = inputs.judge_characters(grader)
        most_shown = grader.max_show_characters * count
        known = min(asked + expected, most_shown)
        shown = (min(answers[0], token_count(most_shown)), _most_shown(inputs, grader, target, answers[1]))
        for judge in judges_of(grader, target, inputs.judge_targets):
            limit = inputs.max_tokens.get(judge)
            verdicts = (_VERDICT_TOKENS * count, None if limit is None else limit * count)
            ranges[judge].add(count, known + prompt * count, shown, verdicts)
    elif isinstance(grader, SimilarGrader):
        ranges[grader.embedding_target].add(count, expected, answers, (0, 0))
    elif isinstance(grader, PairwiseGrader):
        _add_comparisons(ranges[grader.judge_target], inputs, grader, asked + expected, answers)


def _most_shown(inputs: EstimateInput, grader: JudgeGrader, target: str, answers: int | None) -> int:
    """The most tokens of the answers, and of the steps, that a judge is shown: one for each character."""
    most = grader.max_show_characters * inputs.count
    has_steps = grader.may_show_steps and target in inputs.agents
    return most if answers is None or has_steps else min(answers, most)


def _add_comparisons(
    judge: _TokenRange, inputs: EstimateInput, grader: PairwiseGrader, shown: int, answers: tuple[int, int | None]
) -> None:
    """Add the part of one target in the comparisons: ``shown`` characters and two answers in each call."""
    times, count = grader.most_calls(len(inputs.targets)) // len(inputs.targets), inputs.count
    prompt = inputs.judge_characters(grader)
    limit = inputs.max_tokens.get(grader.judge_target)
    least, most = (None if tokens is None else 2 * times * tokens for tokens in answers)
    verdicts = _VERDICT_TOKENS * count * times, None if limit is None else limit * count * times
    judge.add(count * times, times * (shown + prompt * count), (least or 0, most), verdicts)
