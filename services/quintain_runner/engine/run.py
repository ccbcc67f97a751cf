"""Runs an evaluation from its files to the last row.

Checks the dataset, targets and graders, resumes stored results, schedules the trials, and writes the run record. The
run ends when every trial has a row or when the call budget is spent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

from quintain.client.client import Client
from quintain.contracts.session import Info, TargetUsage
from quintain.errors import BusError, Fault
from quintain.graders import Case
from quintain_runner.cost.prices import Price
from quintain_runner.cost.run_cost import run_cost
from quintain_runner.dataset.command import open_dataset
from quintain_runner.dataset.reader import DatasetStats, read_cases
from quintain_runner.engine.error_limit import ErrorLimit, ErrorPolicy
from quintain_runner.engine.rerun_plan import OpenCases, Planner, RerunPlan
from quintain_runner.engine.scheduler import TrialScheduler
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders.base import CloseSession, GraderRunner, GradingContext, ReadSessionInfo, judge_target_of
from quintain_runner.graders.factory import open_graders
from quintain_runner.graders.fingerprint import grader_fingerprints
from quintain_runner.progress.display import TICK_SECONDS, ProgressDisplay
from quintain_runner.progress.state import ProgressState
from quintain_runner.report.run_record import Origin, RunFindings, RunRecord, identity_of, open_record, write_record
from quintain_runner.report.summary import RunSummary, summarize
from quintain_runner.results.row import column_names
from quintain_runner.results.store import ResultFile, current_rows, open_results
from quintain_runner.spec.changes import RerunPolicy, RunFingerprints
from quintain_runner.spec.environment import GraderEnvironment, with_proxy_bypass, without_secret_variables
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import CommandGrader, FunctionGrader, JudgeGrader
from quintain_runner.spec.plan import check_targets_available, max_calls_per_trial
from quintain_runner.spec.reckoning import Reckoning
from quintain_runner.statistics.analysis import Analysis, analyse
from quintain_runner.statistics.frame import build_tagged_frames

#: Default number of trials of each target that run at the same time.
DEFAULT_CONCURRENCY = 64

#: Default number of grader processes that run at the same time.
DEFAULT_GRADER_CONCURRENCY = 8

#: The interval at which the used budget is read for the progress display, in seconds.
BUDGET_POLL_SECONDS = 2.0

#: The cost is read once in this many budget polls, because the ledger sums over every call for it.
BUDGET_POLLS_PER_COST_POLL = 10

#: Reads the usage of the run's session by target; returns None if it is not available.
ReadSpending = Callable[[], Awaitable[Mapping[str, TargetUsage] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Everything that `run_evaluation` needs.

    ``output`` is the results folder. ``client`` is the client of the run's session, and ``calls_of_earlier_sessions``
    the calls that earlier sessions of the same run were charged. ``read_session_info`` reads the counters of a child
    session by its token, and ``close_session`` closes one. ``judge_targets`` is the configured
    ``judge_target`` of each target.

    ``env`` is the environment that graders inherit, without ``hidden_variables``, the variables with the
    configuration's secrets. ``dataset_stats`` is the result of an earlier check of the dataset; if None, the dataset is
    checked first. ``origin`` describes the session in the run record.

    ``prices`` are the known token prices by target. ``read_final_spending`` reads the usage by target after the run,
    and ``read_current_spending`` during it; without them the cost is unknown. ``raise_budget`` raises the session's
    limit to a number of calls; it is None if the user named a budget. ``concurrency`` is the number of trials per
    target, and ``grader_concurrency`` the number of grader processes, that run at the same time.

    ``target_models`` are the models of the targets if the configuration here is that of the workers. ``command`` is the
    command line, for the record. ``on_plan`` is called with the plan of this command before the first call.
    """

    evaluation: Evaluation
    targets: tuple[str, ...]
    output: Path
    client: Client
    read_session_info: ReadSessionInfo
    close_session: CloseSession
    grader_environment: GraderEnvironment
    judge_targets: Mapping[str, str | None]
    hidden_variables: frozenset[str]
    env: Mapping[str, str]
    progress: ProgressDisplay
    dataset_stats: DatasetStats | None = None
    calls_of_earlier_sessions: int = 0
    origin: Origin = field(default_factory=Origin)
    prices: Mapping[str, Price] = field(default_factory=dict)
    read_final_spending: ReadSpending | None = None
    read_current_spending: ReadSpending | None = None
    raise_budget: Callable[[int], Awaitable[None]] | None = None
    target_models: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    on_plan: Callable[[RerunPlan], None] = lambda _: None
    rerun_policy: RerunPolicy = field(default_factory=RerunPolicy)
    error_policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    concurrency: int = DEFAULT_CONCURRENCY
    grader_concurrency: int = DEFAULT_GRADER_CONCURRENCY


async def run_evaluation(setup: RunSetup) -> RunSummary:
    """Run an evaluation, or resume it.

    Raises `ConfigError` before the first call if the evaluation or its files are invalid, and `BusError` if the broker
    is lost. However the run ends, also by an interrupt, all rows written so far are complete and kept.
    """
    evaluation, spec = setup.evaluation, setup.evaluation.spec
    dataset_stats = setup.dataset_stats
    if dataset_stats is None:
        dataset_stats = await asyncio.to_thread(open_dataset, evaluation, setup.output, setup.env)
    info = await setup.client.get_info()
    check_targets_available(_target_references(setup), info.available_targets)
    async with open_graders(evaluation, _grader_env(setup)) as graders, open_results(setup.output) as results:
        identity = identity_of(evaluation, dataset_stats.sha256)
        record = await asyncio.to_thread(open_record, setup.output, evaluation, setup.targets, identity, setup.origin)
        fingerprints = await _run_fingerprints(setup, info, graders, record)

        def open_cases() -> closing[Generator[Case, None, None]]:
            return closing(read_cases(dataset_stats.source))

        plan = await _planner(setup, results, open_cases, fingerprints).plan()
        record = record.with_command(setup.command, fingerprints, plan.to_wire())
        setup.on_plan(plan)
        progress_state = _progress_state(setup, dataset_stats, results)
        await _raise_budget_if_needed(setup, info, progress_state)
        _update_budget(progress_state, info, setup.calls_of_earlier_sessions)
        error_limit = ErrorLimit(setup.error_policy)

        def summary(*, spent: bool = False) -> RunSummary:
            return summarize(
                progress_state,
                threshold=spec.threshold,
                is_budget_spent=spent,
                results=results.path,
                max_calls_per_trial=max_calls_per_trial(evaluation),
                parked_targets=error_limit.parked_targets,
            )

        await asyncio.to_thread(write_record, setup.output, record, summary(), ended=False)
        async with _displayed_progress(setup, progress_state):
            context = _grading_context(setup, info, progress_state, graders, fingerprints)
            scheduler = TrialScheduler(
                _trial_budget(setup, info, context, progress_state, results),
                *(results, progress_state, error_limit),
                prompts=evaluation.prompts,
                concurrency=setup.concurrency,
            )
            is_budget_spent = await scheduler.run(
                open_cases, setup.targets, repeats=spec.repeats, rerun_policy=setup.rerun_policy
            )
        _update_budget(progress_state, await setup.client.get_info(), setup.calls_of_earlier_sessions)
        final_summary = summary(spent=is_budget_spent)
        findings = await _collect_findings(setup)
        await asyncio.to_thread(write_record, setup.output, record, final_summary, ended=True, findings=findings)
    return final_summary


def _progress_state(setup: RunSetup, dataset_stats: DatasetStats, results: ResultFile) -> ProgressState:
    return ProgressState(
        column_names(setup.targets, setup.evaluation.prompt_names),
        cases=dataset_stats.cases,
        repeats=setup.evaluation.spec.repeats,
        resume_state=results.resume_state,
        rerun_policy=setup.rerun_policy,
    )


def _planner(setup: RunSetup, results: ResultFile, open_cases: OpenCases, fingerprints: RunFingerprints) -> Planner:
    return Planner(
        results=results,
        open_cases=open_cases,
        targets=setup.targets,
        prompts=setup.evaluation.prompts,
        repeats=setup.evaluation.spec.repeats,
        fingerprints=fingerprints,
        policy=setup.rerun_policy,
        reckoning=Reckoning.of(setup.evaluation.spec),
    )


async def _collect_findings(setup: RunSetup) -> RunFindings:
    """Compute the statistics and the cost of the stored rows."""

    def analyse_rows() -> Analysis:
        evaluation, rows = setup.evaluation, current_rows(setup.output)
        columns = column_names(setup.targets, evaluation.prompt_names)
        tagged = build_tagged_frames(rows, columns, repeats=evaluation.spec.repeats)
        return analyse(tagged.columns, evaluation.spec.reducers, tagged.by_tag)

    analysis = await asyncio.to_thread(analyse_rows)
    spending = None if setup.read_final_spending is None else await setup.read_final_spending()
    cost = None if spending is None else run_cost(spending, setup.prices, complete=not setup.calls_of_earlier_sessions)
    return RunFindings(analysis=analysis, cost=cost)


def _grader_env(setup: RunSetup) -> dict[str, str]:
    """The environment that grader processes inherit."""
    return with_proxy_bypass(without_secret_variables(setup.env, setup.hidden_variables), setup.grader_environment)


async def _run_fingerprints(
    setup: RunSetup, info: Info, graders: tuple[GraderRunner, ...], record: RunRecord
) -> RunFingerprints:
    """The fingerprints of everybody who is asked in this run, as workers registered them, and of the graders."""
    names = dict.fromkeys(name for _, name in _target_references(setup))
    known: dict[str, str | None] = {name: (info.target_fingerprints or {}).get(name) for name in names}
    models = {one: setup.target_models[name] for name, one in known.items() if one and name in setup.target_models}
    by_target = await grader_fingerprints(setup.evaluation, graders, setup.judge_targets, known, _grader_env(setup))
    return RunFingerprints(targets=known, graders=by_target, models={**record.models, **models})


def _grading_context(
    setup: RunSetup,
    info: Info,
    progress_state: ProgressState,
    graders: tuple[GraderRunner, ...],
    fingerprints: RunFingerprints,
) -> GradingContext:
    """The context that the graders of the run share."""
    return GradingContext(
        run_name=setup.evaluation.name,
        session=setup.client,
        read_session_info=setup.read_session_info,
        close_session=setup.close_session,
        environment=setup.grader_environment,
        graders=graders,
        judge_targets=setup.judge_targets,
        max_calls=info.max_calls,
        process_slots=asyncio.Semaphore(setup.grader_concurrency),
        on_retry=lambda column, error: progress_state.target_gauges[column].record_retry(error),
        prices=setup.prices,
        fingerprints=fingerprints,
        reckoning=Reckoning.of(setup.evaluation.spec),
    )


def _target_references(setup: RunSetup) -> Iterator[tuple[str, str]]:
    """Each target that the evaluation calls, with the place that names it."""
    path = setup.evaluation.path
    for target in setup.targets:
        yield f"{path}: targets", target
    for index, grader in enumerate(setup.evaluation.spec.graders):
        if isinstance(grader, CommandGrader | FunctionGrader | JudgeGrader):
            for target in setup.targets:
                yield f"{path}: graders[{index}].judge_target", judge_target_of(grader, target, setup.judge_targets)


async def _raise_budget_if_needed(setup: RunSetup, info: Info, progress_state: ProgressState) -> None:
    """If the user named no budget, raise the session's limit to the most calls that the pending trials can make.

    Calls that were charged already, also for earlier tries, are added to it.
    """
    needed_calls = info.call_count + progress_state.pending_trials * max_calls_per_trial(setup.evaluation)
    if setup.raise_budget is not None and needed_calls > info.max_calls:
        await setup.raise_budget(needed_calls)


def _trial_budget(
    setup: RunSetup, info: Info, context: GradingContext, progress_state: ProgressState, results: ResultFile
) -> TrialBudget:
    """Calls are reserved if the run's own limit may not be enough, or another session's, on whose budget it draws."""
    needed_calls = progress_state.pending_trials * max_calls_per_trial(setup.evaluation)
    may_lack_calls = setup.raise_budget is None and needed_calls > info.max_calls - info.call_count
    is_scarce = may_lack_calls or info.parent_id is not None
    return TrialBudget(context, is_scarce=is_scarce, most_calls=results.resume_state.most_grader_calls)


def _update_budget(progress_state: ProgressState, info: Info, calls_of_earlier_sessions: int) -> None:
    """Copy the session's counters to the progress state, including the calls of earlier sessions.

    A call that is only reserved is none yet.
    """
    progress_state.budget.update(
        info.call_count - info.reserved + calls_of_earlier_sessions, info.max_calls + calls_of_earlier_sessions
    )


async def _update_cost(setup: RunSetup, progress_state: ProgressState) -> None:
    """Read the usage so far and update the cost in the progress state, if prices and usage are available."""
    spending = await setup.read_current_spending() if setup.read_current_spending is not None and setup.prices else None
    if spending is not None:
        progress_state.cost = run_cost(spending, setup.prices, complete=not setup.calls_of_earlier_sessions)


@asynccontextmanager
async def _displayed_progress(setup: RunSetup, progress_state: ProgressState) -> AsyncIterator[None]:
    """Show the progress of the run inside the ``async with`` block: redraw it, and poll the budget and the cost."""

    async def refresh_display() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            setup.progress.tick()

    async def poll_budget() -> None:
        for times in itertools.count(1):
            await asyncio.sleep(BUDGET_POLL_SECONDS)
            try:
                _update_budget(progress_state, await setup.client.get_info(), setup.calls_of_earlier_sessions)
                if times % BUDGET_POLLS_PER_COST_POLL == 1:
                    await _update_cost(setup, progress_state)
            except (Fault, BusError):
                # These values are only displayed, so a failed read is skipped; the next one may succeed.
                continue

    setup.progress.start(progress_state)
    tasks = [asyncio.create_task(refresh_display()), asyncio.create_task(poll_budget())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        # asyncio.wait does not raise the tasks' CancelledError in this task.
        await asyncio.wait(tasks)
        setup.progress.stop()
