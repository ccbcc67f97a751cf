"""Checks an evaluation: reports all errors at once, estimates calls, tokens and cost, and probes its targets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from quintain.client.client import Client
from quintain.config.loader import Config
from quintain.config.prices import Price, known_prices, target_price
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.money import CostTerms
from quintain.contracts.session import AmendSession, OpenSession, SessionState, Usage
from quintain.errors import BusError, ConfigError, Fault
from quintain.settings import Settings
from quintain_metadata.store.base import IN_MEMORY_URL
from quintain_runner.engine.backend import connect_backend
from quintain_runner.engine.cost_limit import CostLimitCheck, configured_costs, has_cost_limit, inspect_cost_limit
from quintain_runner.engine.estimate import EstimateInput, RunEstimate, estimate_run
from quintain_runner.engine.judges import agents_of, judge_prompts, judge_targets_of, unknown_of_fleet
from quintain_runner.engine.requirements import check_turns
from quintain_runner.engine.run_settings import Inspection, RunOptions, RunSettings, inspect_evaluation
from quintain_runner.plan.trials import max_grader_calls, request_of
from quintain_runner.report.run_file import FILE_NAME, read_run
from quintain_runner.spec.asking_graders import PairwiseGrader
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import grader_kind

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
    asked = request_of(case, targets[0], repeat=1)
    request = asked.with_fields(eval_case_id=None, attempt=None)
    async with _open_probe_session(run, targets, len(targets)) as session:
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
async def _open_probe_session(run: RunSettings, targets: Sequence[str], max_calls: int) -> AsyncIterator[Client]:
    """Open a session with so many calls; it is closed on exit if there is an admin token."""
    request = OpenSession(
        default_target=targets[0],
        max_calls=max_calls,
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
    """A grader, its kind, the targets that it may call, and the maximum number of calls per row. ``cases`` is how many
    cases have it of their own; None for one of the evaluation."""

    name: str
    kind: str
    calls: list[str] = Field(default_factory=list)
    most_calls: int = 0
    cases: int | None = None


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
    costs = await _inspect_fleet(found) if found.is_on_fleet else configured_costs(found)
    cost_limit = inspect_cost_limit(found, costs or {})
    probes: list[ProbeResult] = []
    if probe and not found.problems:
        with found.collect_errors():
            probes = await probe_targets(found.checked(), found.called_targets)
    report = _build_report(options.path, found, probes, costs or {})
    if costs is None:
        unknown = (
            "what a row reserves, and which targets keep a conversation, which this fleet did not tell: with "
            "QUINTAIN_ADMIN_TOKEN or a session it does"
        )
        report.not_checked.append(unknown)
    return report.model_copy(update={"cost_limit": cost_limit})


async def _inspect_fleet(found: Inspection) -> Mapping[str, CostTerms] | None:
    """Check the conversations of a run with its fleet's targets, and return what their calls can cost at most, if it
    has a limit in money; None where the fleet does not tell."""
    dataset = found.dataset
    has_conversations = dataset is not None and dataset.conversations is not None
    if found.problems or not (has_conversations or has_cost_limit(found)):
        return {}
    try:
        async with _open_probe_session(found.checked(), found.called_targets, max_calls=0) as session:
            info = await session.get_info()
    except (BusError, ConfigError, Fault):
        return None
    with found.collect_errors():
        if dataset is not None:
            check_turns(dataset, found.targets, info.one_question_targets or ())
    return info.target_costs or {}


def _build_report(
    path: Path, found: Inspection, probes: list[ProbeResult], costs: Mapping[str, CostTerms]
) -> CheckReport:
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
            "prompts": [one.name for one in evaluation.asked_prompts if one.name is not None],
            "graders": list(_grader_summaries(found, evaluation)),
            "max_calls": spec.max_calls,
            "probes": probes,
            "estimate": _build_estimate(found, evaluation, probes, costs),
        }
    )


def _not_checked(found: Inspection, *, probed: Collection[str]) -> Iterator[str]:
    """Yield what can only be known on other machines or by a call."""
    if found.is_on_fleet:
        yield "the extras, programs and variables of the fleet's workers, which only their machines have"
        if found.evaluation is not None and (unknown := unknown_of_fleet(found.evaluation)) is not None:
            yield unknown
    unprobed = [name for name in found.called_targets if name not in probed and not _is_mock(found, name)]
    if unprobed:
        yield f"whether {', '.join(unprobed)} would answer (key, model, server): --probe calls each once"


def _is_mock(found: Inspection, name: str) -> bool:
    # On a fleet the configuration of the workers decides.
    targets = {} if found.config is None or found.is_on_fleet else found.config.targets
    return name in targets and targets[name].provider == "mock"


def _build_estimate(
    found: Inspection, evaluation: Evaluation, probes: list[ProbeResult], costs: Mapping[str, CostTerms]
) -> RunEstimate | None:
    if found.dataset is None or not found.targets:
        return None
    return estimate_run(
        EstimateInput(
            evaluation=evaluation,
            dataset=found.dataset,
            targets=found.targets,
            judge_targets=judge_targets_of(found.config),
            agents=agents_of(found.config),
            judge_prompts=judge_prompts(evaluation),
            probed_usage={probe.target: probe.token_usage for probe in probes if probe.token_usage is not None},
            prices={} if found.config is None else known_prices(found.config.targets),
            earlier_usage=_earlier_usage(found.options.folder),
            max_tokens={
                name: terms.max_tokens
                for name, terms in costs.items()
                if terms.max_tokens is not None and not terms.is_estimate
            },
        )
    )


def _earlier_usage(folder: Path) -> Mapping[str, Usage]:
    """What calls took in the run whose results are in this folder, by target."""
    usage: defaultdict[str, Usage] = defaultdict(Usage)
    # A record that cannot be read is told by the run.
    with contextlib.suppress(ConfigError):
        for session in read_run(folder).sessions if (folder / FILE_NAME).is_file() else ():
            for line in session.usage:
                usage[line.target] += line
    return usage


def _grader_summaries(found: Inspection, evaluation: Evaluation) -> Iterator[GraderSummary]:
    for index, grader in evaluation.numbered_graders:
        called = [target for place, target in found.judge_references if place == index]
        most_calls = max_grader_calls(evaluation, grader) if called else 0
        if isinstance(grader, PairwiseGrader):
            most_calls = -(-grader.most_calls(len(found.targets)) // len(found.targets))
        yield GraderSummary(name=grader.name, kind=grader_kind(grader), calls=called, most_calls=most_calls)
    if found.dataset is not None:
        own, judges = found.dataset.own_graders, judge_targets_of(found.config)
        for name, most_calls in own.limits.items():
            called = [judge for target in found.targets for judge in own.judges_of(target, judges, name)]
            calls = list(dict.fromkeys(called))
            yield GraderSummary(
                name=name, kind=own.kinds[name], cases=own.cases[name], calls=calls, most_calls=most_calls
            )
