"""Runs an evaluation from its files to the last row.

Checks the dataset, targets and graders, resumes stored results, schedules the trials, and writes the run record. The
run ends when every trial has a row or when the call budget is spent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

from quintain.client.client import Client
from quintain.contracts.session import Info, TargetUsage
from quintain.errors import BusError, Fault
from quintain_runner.cost.prices import Price
from quintain_runner.cost.run_cost import run_cost
from quintain_runner.dataset.command import open_dataset
from quintain_runner.dataset.reader import DatasetStats, read_cases
from quintain_runner.engine.scheduler import TrialScheduler
from quintain_runner.graders.base import GraderRunner, GradingContext, ReadSessionInfo, judge_target_of
from quintain_runner.graders.factory import open_graders
from quintain_runner.progress.display import TICK_SECONDS, ProgressDisplay
from quintain_runner.progress.state import ProgressState
from quintain_runner.report.run_record import Origin, RunFindings, identity_of, open_record, write_record
from quintain_runner.report.summary import RunSummary, summarize
from quintain_runner.results.resume_state import ResumeState
from quintain_runner.results.store import current_rows, open_results
from quintain_runner.spec.environment import GraderEnvironment, with_proxy_bypass, without_secret_variables
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import CommandGrader, FunctionGrader, JudgeGrader
from quintain_runner.spec.plan import RerunPolicy, check_targets_available, max_calls_per_trial
from quintain_runner.statistics.analysis import Analysis, analyse
from quintain_runner.statistics.frame import build_frames

#: How many trials of a target are under way at once where nobody says.
DEFAULT_CONCURRENCY = 64

#: How many grader processes run at once where nobody says.
DEFAULT_GRADER_CONCURRENCY = 8

#: How often the ledger is asked how far the budget has come, in seconds.
BUDGET_POLL_SECONDS = 2.0

#: Each so many times it is asked for the cost as well: that is a sum over every call.
BUDGET_POLLS_PER_COST_POLL = 10

#: Asks what the run's session spent on which target; None where nobody can say.
ReadSpending = Callable[[], Awaitable[Mapping[str, TargetUsage] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Everything a run stands on.

    ``client`` is the run's own session, ``calls_of_earlier_sessions`` what sessions of before it were charged in its
    name, ``read_session_info`` asks for a child's counters with the child's token, ``judge_targets`` is the
    configuration's ``judge_target`` by target, ``hidden_variables`` the variables the configuration names, ``env``
    the runner's environment, of which graders get what is not hidden. ``dataset_stats`` are the dataset's, where it
    was checked already. ``origin`` is what the record says of the session, ``prices`` what is known of them by
    target, and ``read_final_spending`` asks what went to which target; without it nobody knows the cost.
    ``read_current_spending`` asks the same while calls are under way. ``raise_budget`` raises the session's limit,
    where nobody named a budget.
    """

    evaluation: Evaluation
    targets: tuple[str, ...]
    output: Path
    client: Client
    read_session_info: ReadSessionInfo
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
    rerun_policy: RerunPolicy = field(default_factory=RerunPolicy)
    concurrency: int = DEFAULT_CONCURRENCY
    grader_concurrency: int = DEFAULT_GRADER_CONCURRENCY


async def run_evaluation(setup: RunSetup) -> RunSummary:
    """Run an evaluation, or take it up where it stopped.

    Raises `ConfigError` before the first call where something a person wrote cannot be used, and what the bus
    raises where the fleet is gone. Whatever ends it, an interrupt too: the rows written are complete, and kept.
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
        progress_state = ProgressState(
            setup.targets,
            cases=dataset_stats.cases,
            repeats=spec.repeats,
            resume_state=results.resume_state,
            rerun_policy=setup.rerun_policy,
        )
        await _raise_budget_if_needed(setup, info, progress_state)
        _update_budget(progress_state, info, setup.calls_of_earlier_sessions)

        def summary(*, parked: bool = False) -> RunSummary:
            return summarize(
                progress_state,
                threshold=spec.threshold,
                is_budget_spent=parked,
                results=results.path,
                max_calls_per_trial=max_calls_per_trial(evaluation),
            )

        await asyncio.to_thread(write_record, setup.output, record, summary(), ended=False)
        async with _displayed_progress(setup, progress_state):
            scheduler = TrialScheduler(
                _grading_context(setup, info, progress_state, graders),
                results,
                progress_state,
                concurrency=setup.concurrency,
            )
            is_budget_spent = await scheduler.run(
                lambda: closing(read_cases(dataset_stats.source)), repeats=spec.repeats, rerun_policy=setup.rerun_policy
            )
        results.resume_state.clear()
        _update_budget(progress_state, await setup.client.get_info(), setup.calls_of_earlier_sessions)
        final_summary = summary(parked=is_budget_spent)
        findings = await _collect_findings(setup)
        await asyncio.to_thread(write_record, setup.output, record, final_summary, ended=True, findings=findings)
    return final_summary


async def _collect_findings(setup: RunSetup) -> RunFindings:
    def analyse_rows() -> Analysis:
        # Of a superseded row the columns know themselves.
        rows = current_rows(setup.output, ResumeState())
        return analyse(build_frames(rows, setup.targets, repeats=setup.evaluation.spec.repeats))

    analysis = await asyncio.to_thread(analyse_rows)
    spending = None if setup.read_final_spending is None else await setup.read_final_spending()
    cost = None if spending is None else run_cost(spending, setup.prices, complete=not setup.calls_of_earlier_sessions)
    return RunFindings(analysis=analysis, cost=cost)


def _grader_env(setup: RunSetup) -> dict[str, str]:
    return with_proxy_bypass(without_secret_variables(setup.env, setup.hidden_variables), setup.grader_environment)


def _grading_context(
    setup: RunSetup, info: Info, progress_state: ProgressState, graders: tuple[GraderRunner, ...]
) -> GradingContext:
    return GradingContext(
        run_name=setup.evaluation.name,
        session=setup.client,
        read_session_info=setup.read_session_info,
        environment=setup.grader_environment,
        graders=graders,
        judge_targets=setup.judge_targets,
        max_calls=info.max_calls,
        process_slots=asyncio.Semaphore(setup.grader_concurrency),
        on_retry=lambda target, error: progress_state.target_gauges[target].record_retry(error),
        prices=setup.prices,
    )


def _target_references(setup: RunSetup) -> Iterator[tuple[str, str]]:
    path = setup.evaluation.path
    for target in setup.targets:
        yield f"{path}: targets", target
    for index, grader in enumerate(setup.evaluation.spec.graders):
        if isinstance(grader, CommandGrader | FunctionGrader | JudgeGrader):
            for target in setup.targets:
                yield f"{path}: graders[{index}].judge_target", judge_target_of(grader, target, setup.judge_targets)


async def _raise_budget_if_needed(setup: RunSetup, info: Info, progress_state: ProgressState) -> None:
    """Where nobody named a budget, it is what is left to ask may take, whatever tries of before were charged."""
    needed_calls = info.call_count + progress_state.pending_trials * max_calls_per_trial(setup.evaluation)
    if setup.raise_budget is not None and needed_calls > info.max_calls:
        await setup.raise_budget(needed_calls)


def _update_budget(progress_state: ProgressState, info: Info, calls_of_earlier_sessions: int) -> None:
    progress_state.budget.update(
        info.call_count + calls_of_earlier_sessions, info.max_calls + calls_of_earlier_sessions
    )


async def _update_cost(setup: RunSetup, progress_state: ProgressState) -> None:
    spending = await setup.read_current_spending() if setup.read_current_spending is not None and setup.prices else None
    if spending is not None:
        progress_state.cost = run_cost(spending, setup.prices, complete=not setup.calls_of_earlier_sessions)


@asynccontextmanager
async def _displayed_progress(setup: RunSetup, progress_state: ProgressState) -> AsyncIterator[None]:
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
                # Only shown: the next one may be answered.
                continue

    setup.progress.start(progress_state)
    tasks = [asyncio.create_task(refresh_display()), asyncio.create_task(poll_budget())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        # Waited for, not awaited: their cancel is not this task's.
        await asyncio.wait(tasks)
        setup.progress.stop()
