"""Checks an evaluation: reports all errors at once, estimates calls, tokens and cost, and probes its targets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from pydantic import Field

from quintain.client.client import Client
from quintain.config.loader import Config
from quintain.config.prices import Price, known_prices, source_text, target_price
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.session import AmendSession, OpenSession, SessionState
from quintain.errors import ConfigError, Fault
from quintain.settings import Settings
from quintain_metadata.store.base import IN_MEMORY_URL
from quintain_runner.engine.backend import connect_backend
from quintain_runner.engine.cost_limit import CostLimitCheck, inspect_cost_limit
from quintain_runner.engine.run_settings import (
    Inspection,
    RunOptions,
    RunSettings,
    inspect_evaluation,
    judge_targets_of,
)
from quintain_runner.files import read_text_file
from quintain_runner.graders.base import judge_target_of
from quintain_runner.plan.cases import token_count
from quintain_runner.plan.dataset import DatasetStats
from quintain_runner.plan.trials import CallsEstimate, calling_graders, estimate_calls, max_grader_calls
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import JudgeGrader, grader_kind

#: The deadline of a probe, in seconds.
PROBE_TIMEOUT_SECONDS = 120.0


class ProbeResult(Message):
    """The result of probing one target: duration and usage of its answer, or an error.

    ``charged`` says whether the call was charged, ``charge_unknown`` that this is not known (``charged`` is true then).
    ``usd`` is None if the price is not known.
    """

    target: str
    seconds: float
    error: str | None = None
    charged: bool = True
    charge_unknown: bool | None = None
    token_usage: TokenUsage | None = None
    usd: float | None = None


async def probe_targets(run: RunSettings, targets: Sequence[str]) -> list[ProbeResult]:
    """Call each of these targets once, concurrently, with the first case of the dataset under the first prompt.

    Raises `ConfigError` if no session may be opened, and `BusError` if there is no fleet.
    """
    with run.open_cases() as cases:
        case = run.evaluation.prompts[0].apply(next(cases))
    request = InvokeRequest(
        question=case.question, messages=case.messages, system_prompt=case.system_prompt, settings=case.settings
    )
    async with _open_probe_session(run, targets) as session:
        available_targets = (await session.get_info()).available_targets
        probes = [_probe_target(run.config, session, request, target, available_targets) for target in targets]
        return list(await asyncio.gather(*probes))


async def _probe_target(
    config: Config | None, session: Client, request: InvokeRequest, target: str, available_targets: list[str]
) -> ProbeResult:
    started_at = time.monotonic()
    if target not in available_targets:
        # A call to a target without a worker would wait until its deadline.
        error = f"no worker serves it; served are: {', '.join(available_targets) or 'none'}"
        return ProbeResult(target=target, seconds=0, error=error, charged=False)
    try:
        result = await session.send(
            request.model_copy(update={"target": target}), deadline_seconds=PROBE_TIMEOUT_SECONDS
        )
    except Fault as fault:
        duration_seconds = time.monotonic() - started_at
        return ProbeResult(
            target=target,
            seconds=duration_seconds,
            error=_fault_text(fault),
            charged=fault.charged is not False,
            charge_unknown=True if fault.charged is None else None,
        )
    price = _price_of_target(config, target)
    usage = result.token_usage
    cost = None if price is None else price.of_call(usage)
    return ProbeResult(target=target, seconds=time.monotonic() - started_at, token_usage=usage, usd=cost)


def _fault_text(fault: Fault) -> str:
    """The fault's sentence, and the provider's own words, in which secrets are masked."""
    words = None if fault.provider_error is None else fault.provider_error.message
    return f"{fault.code}: {fault.message}" + (f'; the provider says: "{words}"' if words else "")


def _price_of_target(config: Config | None, target: str) -> Price | None:
    return None if config is None or target not in config.targets else target_price(config.targets[target])


@contextlib.asynccontextmanager
async def _open_probe_session(run: RunSettings, targets: Sequence[str]) -> AsyncIterator[Client]:
    """Open a session with one call per target; it is closed on exit if there is an admin token."""
    request = OpenSession(
        default_target=targets[0],
        max_calls=len(targets),
        label=f"check {run.evaluation.name}"[:200],
        max_body_bytes=run.evaluation.spec.max_body_bytes,
        expires_in_seconds=10 * PROBE_TIMEOUT_SECONDS,
    )
    async with connect_backend(run, ledger_url=IN_MEMORY_URL) as backend:
        opened = await backend.open_session(request)
        async with backend.connect_session(opened.token) as session:
            yield session
        if backend.admin is not None:
            await backend.admin.amend(AmendSession(session_id=opened.session_id, state=SessionState.CLOSED))


class GraderSummary(Message):
    """A grader, its kind, the targets that it may call, and the maximum number of calls per row."""

    name: str
    kind: str
    calls: list[str] = Field(default_factory=list)
    most_calls: int = 0


class CheckReport(Message):
    """The result of a check.

    ``problems`` are errors to fix before a run, ``warnings`` are what may be one, ``not_checked`` says what cannot be
    known from here, and failed probes are in ``probes``.
    """

    evaluation: str
    problems: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    not_checked: list[str] = Field(default_factory=list)
    on_fleet: bool = False
    config: str | None = None
    variables: list[str] = Field(default_factory=list)
    cases: int | None = None
    repeats: int | None = None
    targets: list[str] = Field(default_factory=list)
    prompts: list[str] = Field(default_factory=list)
    graders: list[GraderSummary] = Field(default_factory=list)
    max_calls: int | None = None
    cost_limit: CostLimitCheck | None = None
    probes: list[ProbeResult] = Field(default_factory=list)
    estimate: RunEstimate | None = None


async def check_evaluation(options: RunOptions, settings: Settings, *, probe: bool = False) -> CheckReport:
    """Check an evaluation. With ``probe`` each target is called once if there are no problems.

    Raises `BusError` if there is no fleet to probe.
    """
    found = await inspect_evaluation(options, settings)
    cost_limit = inspect_cost_limit(found)
    probes: list[ProbeResult] = []
    if probe and not found.problems:
        with found.collect_errors():
            probes = await probe_targets(found.checked(), found.called_targets)
    return _build_report(options.path, found, probes).model_copy(update={"cost_limit": cost_limit})


def _build_report(path: Path, found: Inspection, probes: list[ProbeResult]) -> CheckReport:
    report = CheckReport(
        evaluation=str(path),
        problems=found.problems,
        warnings=found.warnings,
        on_fleet=found.is_on_fleet,
        not_checked=list(_not_checked(found, probed={probe.target for probe in probes})),
    )
    config, evaluation = found.config, found.evaluation
    if config is not None:
        report = report.model_copy(update={"config": str(config.path), "variables": list(config.variable_names)})
    if evaluation is None:
        return report
    spec = evaluation.spec
    return report.model_copy(
        update={
            "cases": None if found.dataset is None else found.dataset.cases,
            "repeats": spec.repeats,
            "targets": list(found.targets),
            "prompts": evaluation.prompt_names,
            "graders": list(_grader_summaries(found, evaluation)),
            "max_calls": spec.max_calls,
            "probes": probes,
            "estimate": _build_estimate(found, evaluation, probes),
        }
    )


def _not_checked(found: Inspection, *, probed: Collection[str]) -> Iterator[str]:
    """Yield what can only be known on other machines or by a call."""
    if found.is_on_fleet:
        yield "the extras, programs and variables of the fleet's workers, which only their machines have"
    unprobed = [name for name in found.called_targets if name not in probed and not _is_mock(found, name)]
    if unprobed:
        yield f"whether {', '.join(unprobed)} would answer (key, model, server): --probe calls each once"


def _is_mock(found: Inspection, name: str) -> bool:
    # On a fleet the configuration of the workers decides.
    targets = {} if found.config is None or found.is_on_fleet else found.config.targets
    return name in targets and targets[name].provider == "mock"


def _build_estimate(found: Inspection, evaluation: Evaluation, probes: list[ProbeResult]) -> RunEstimate | None:
    if found.dataset is None or not found.targets:
        return None
    return estimate_run(
        EstimateInput(
            evaluation=evaluation,
            dataset=found.dataset,
            targets=found.targets,
            judge_targets=judge_targets_of(found.config),
            judge_prompts=_prompts(evaluation),
            probed_usage={probe.target: probe.token_usage for probe in probes if probe.token_usage is not None},
            prices={} if found.config is None else known_prices(found.config.targets),
        )
    )


def _prompts(evaluation: Evaluation) -> dict[str, str]:
    prompts: dict[str, str] = {}
    for grader in evaluation.spec.graders:
        if isinstance(grader, JudgeGrader):
            # A prompt that cannot be read is already among the problems.
            with contextlib.suppress(ConfigError):
                prompts[grader.name] = read_text_file(evaluation.folder, grader.prompt)
    return prompts


def _grader_summaries(found: Inspection, evaluation: Evaluation) -> Iterator[GraderSummary]:
    for index, grader in enumerate(evaluation.spec.graders):
        called = [target for place, target in found.judge_references if place == index]
        most_calls = max_grader_calls(evaluation, grader) if called else 0
        yield GraderSummary(name=grader.name, kind=grader_kind(grader), calls=called, most_calls=most_calls)


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
    tokens, or None if there are none; ``price_sources`` says where each target's price is from. ``left_out`` are the
    graders whose own code calls targets: their tokens and costs are unknown and not included.
    """

    calls: CallsEstimate
    tokens: dict[str, TokensEstimate]
    left_out: list[str] = Field(default_factory=list)
    usd: float | None = None
    usd_of: list[str] = Field(default_factory=list)
    price_sources: dict[str, str] = Field(default_factory=dict)


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
        price_sources={name: source_text(price) for name, price in inputs.prices.items() if name in tokens},
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
    count = inputs.evaluation.trials_of(dataset.cases, targets=1)
    shown = token_count((dataset.input_characters + dataset.expected_characters) * repeats) + (answer_tokens or 0)
    prompt_tokens = token_count(len(inputs.judge_prompts.get(grader.name, ""))) + _JUDGE_RULES_TOKENS
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
