"""What a run requires: of its cases, and of calls, tokens and money. No I/O."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic import Field, ValidationError

from quintain.config.prices import Price
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import DEFAULT_REQUEST_BYTES, Message
from quintain.errors import BadRequest
from quintain.graders import Case
from quintain_runner.graders.base import GraderRunner, judge_target_of
from quintain_runner.graders.builtin import BuiltinGraderRunner, parse_number
from quintain_runner.graders.judge import OWN_SECTIONS, section_text
from quintain_runner.graders.program import ProgramGraderRunner
from quintain_runner.plan.cases import expected_text
from quintain_runner.plan.dataset import DatasetStats
from quintain_runner.plan.selection import CaseRequirement
from quintain_runner.plan.trials import CallsEstimate, calling_graders, estimate_calls, request_of
from quintain_runner.spec.evaluation import Evaluation, EvaluationSpec
from quintain_runner.spec.graders import (
    ContainsGrader,
    ExactGrader,
    GraderSpec,
    JudgeGrader,
    NumericGrader,
    grader_kind,
)
from quintain_runner.spec.prompts import Prompt, case_field

#: The most bytes of JSON that one character of a text takes (``\u0001``).
_MAX_BYTES_PER_CHARACTER = 6

#: An upper bound of what a request contains besides the texts of its case, in bytes.
_ENVELOPE_BYTES = 2000


def case_requirements(evaluation: Evaluation, targets: Collection[str]) -> tuple[CaseRequirement, ...]:
    """The requirements on every case: it has what the prompts name, its requests can be sent, and its answers graded.

    ``targets`` are the names of the targets under test; a request contains its target's name.
    """
    spec = evaluation.spec
    asking = (requirement for prompt in evaluation.prompts for requirement in _prompt_requirements(prompt))
    sections = _section_requirements(evaluation)
    return (*_grading_requirements(spec), *sections, *asking, _size_requirement(evaluation, targets))


def fields_in_use(evaluation: Evaluation) -> frozenset[str]:
    """The fields of a case that the evaluation file names: in prompts, ``where``, ``by`` and what judges see."""
    spec = evaluation.spec
    shown = (field for grader in spec.graders if isinstance(grader, JudgeGrader) for field in grader.show)
    prompted = (field for prompt in evaluation.prompts for field in prompt.fields)
    return frozenset(field.partition(".")[0] for field in (*shown, *prompted, *spec.dataset.where, *spec.by))


def graders_without_session(graders: Iterable[GraderRunner]) -> frozenset[str]:
    """The names of the graders that make no calls: built-in ones except judges, and functions that take no session."""
    return frozenset(
        grader.name
        for grader in graders
        if isinstance(grader, BuiltinGraderRunner)
        or (isinstance(grader, ProgramGraderRunner) and not grader.needs_session)
    )


def _grading_requirements(spec: EvaluationSpec) -> Iterator[CaseRequirement]:
    comparing = [grader for grader in spec.graders if _needs_expected(grader)]
    if comparing:
        yield CaseRequirement(
            is_met=lambda case: case.expected is not None,
            problem="no expected",
            reason=f"needed by {_grader_names(comparing)}",
            fix="add it to them, leave them out with where, or take another grader",
        )
    numeric = [grader for grader in spec.graders if isinstance(grader, NumericGrader)]
    if numeric:
        yield CaseRequirement(
            is_met=lambda case: case.expected is None or parse_number(expected_text(case) or "") is not None,
            problem="an expected that is not a number",
            reason=f"needed by {_grader_names(numeric)}",
            fix="write a number, leave them out with where, or take another grader",
        )


def _section_requirements(evaluation: Evaluation) -> Iterator[CaseRequirement]:
    """Each section that a judge is to be shown and that not every case has."""
    judges = [grader for grader in evaluation.spec.graders if isinstance(grader, JudgeGrader)]
    for name in dict.fromkeys(name for judge in judges for name in judge.show):
        if name in {"question", "expected", "output"}:
            continue
        showing = _grader_names(judge for judge in judges if name in judge.show)
        yield CaseRequirement(
            is_met=lambda case, name=name: any(  # type: ignore[misc]
                section_text(name, prompt.apply(case), "") is not None for prompt in evaluation.prompts
            ),
            problem=f"no field {name!r}",
            reason=f"{showing} has it in show, and would not see it",
            fix="add it to them, or take it out of show",
            field=name,
            own_fields=OWN_SECTIONS,
        )


def _needs_expected(grader: GraderSpec) -> bool:
    """Whether a grader fails without ``expected``. A judge does only if the file lists it in ``show``."""
    if isinstance(grader, JudgeGrader):
        return "show" in grader.model_fields_set and "expected" in grader.show
    return isinstance(grader, ExactGrader | ContainsGrader | NumericGrader)


def _grader_names(graders: Iterable[GraderSpec]) -> str:
    return ", ".join(f"{grader.name} ({grader_kind(grader)})" for grader in graders)


def _prompt_requirements(prompt: Prompt) -> Iterator[CaseRequirement]:
    for name in prompt.fields:
        yield CaseRequirement(
            is_met=lambda case, name=name: case_field(case, name) is not None,  # type: ignore[misc]
            problem=f"no field {name!r}",
            reason=f"the prompt {prompt.name} names it as {{{{ {name} }}}}",
            fix="add it to them, leave them out with where, or change the prompt",
        )
    if not prompt.asks_the_case:
        yield CaseRequirement(
            is_met=lambda case: bool(prompt.apply(case).question_text.strip()) or _lacks_field(prompt, case),
            problem="an empty message",
            reason=f"the prompt {prompt.name} is nothing but white space with them",
            fix="fill in their fields, leave them out with where, or change the prompt",
        )


def _lacks_field(prompt: Prompt, case: Case) -> bool:
    """Whether the case has no value for a field of the prompt, which is an error of its own."""
    return any(case_field(case, field) is None for field in prompt.fields)


def _size_requirement(evaluation: Evaluation, targets: Collection[str]) -> CaseRequirement:
    # The longest name makes the largest request.
    target = max(targets, key=len, default="")
    max_bytes = evaluation.spec.max_body_bytes or DEFAULT_REQUEST_BYTES

    def fits(case: Case) -> bool:
        return all(request_fits(prompt.apply(case)) for prompt in evaluation.prompts)

    def request_fits(case: Case) -> bool:
        texts = (case.id, case.question, case.system_prompt)
        characters = sum(len(text) for text in texts if text is not None)
        if (
            case.messages is None
            and case.settings is None
            and characters * _MAX_BYTES_PER_CHARACTER + _ENVELOPE_BYTES < max_bytes
        ):
            return True
        try:
            body = request_of(case, target, evaluation.spec.repeats).to_wire()
        except (BadRequest, ValidationError):
            # The text is empty or not valid Unicode, which is another error.
            return True
        return len(body) <= max_bytes

    return CaseRequirement(
        is_met=fits,
        problem=f"a request of more than {max_bytes:,} bytes",
        reason="no message may be larger",
        fix="raise max_body_bytes, shorten them, or leave them out with where",
    )


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
    """Estimate the calls, tokens and cost of a run."""
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
