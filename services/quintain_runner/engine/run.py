"""Runs an evaluation from its files to the last row.

Checks the dataset, targets and graders, resumes stored results, schedules the trials, and writes the run record. The
run ends when every trial has a row or when the call budget is spent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, closing

from quintain.contracts.session import Info
from quintain.errors import BusError, Fault
from quintain.graders import Case
from quintain_runner.dataset.command import open_dataset
from quintain_runner.dataset.reader import read_cases
from quintain_runner.engine.error_limit import ErrorLimit
from quintain_runner.engine.rerun_plan import OpenCases, Planner, RerunPlan
from quintain_runner.engine.run_setup import RunSetup
from quintain_runner.engine.scheduler import TrialScheduler
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders.base import GraderRunner, GradingContext, judge_target_of
from quintain_runner.graders.factory import open_graders
from quintain_runner.graders.fingerprint import grader_fingerprints
from quintain_runner.progress.display import TICK_SECONDS
from quintain_runner.progress.state import ProgressState
from quintain_runner.report.run_record import RunFindings, RunRecord, identity_of, open_record, write_record
from quintain_runner.report.summary import RunSummary, summarize
from quintain_runner.results.row import column_names
from quintain_runner.results.store import ResultFile, open_results
from quintain_runner.spec.changes import RunFingerprints
from quintain_runner.spec.environment import with_proxy_bypass, without_secret_variables
from quintain_runner.spec.graders import CommandGrader, FunctionGrader, JudgeGrader
from quintain_runner.spec.plan import check_targets_available, max_calls_per_trial
from quintain_runner.spec.reckoning import Reckoning
from quintain_runner.statistics.analysis import Analysis, analyse
from quintain_runner.statistics.frame import build_tagged_frames

#: The interval at which the used budget is read for the progress display, in seconds.
BUDGET_POLL_SECONDS = 2.0

#: The cost is read once in this many budget polls, because the ledger sums over every call for it.
BUDGET_POLLS_PER_COST_POLL = 10


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
    check_targets_available(_target_references(setup, _called_targets(setup)), info.available_targets)
    async with (
        open_graders(evaluation, _grader_env(setup)) as graders,
        open_results(setup.output, keeps_content=setup.keeps_content) as results,
    ):
        identity = identity_of(evaluation, dataset_stats.sha256)
        record = await asyncio.to_thread(open_record, setup.output, evaluation, setup.targets, identity, setup.origin)
        fingerprints = await _run_fingerprints(setup, info, graders, record)

        def open_cases() -> closing[Generator[Case, None, None]]:
            return closing(read_cases(dataset_stats.source))

        plan = await _planner(setup, results, open_cases, fingerprints).plan()
        record = record.with_command(setup.command, fingerprints, plan.to_wire(), setup.selection.to_wire())
        setup.on_plan(plan)
        progress_state = _progress_state(setup, dataset_stats.cases, results, plan)
        info = await _raise_budget_if_needed(setup, info, plan)
        _update_budget(progress_state, info, setup.calls_of_earlier_sessions)
        error_limit = ErrorLimit(setup.error_policy)

        def summary(*, spent: bool = False) -> RunSummary:
            return summarize(
                progress_state,
                threshold=spec.threshold,
                is_budget_spent=spent,
                results=results.path,
                parked_targets=error_limit.parked_targets,
            )

        await asyncio.to_thread(write_record, setup.output, record, summary(), ended=False)
        async with _displayed_progress(setup, record, progress_state):
            context = _grading_context(setup, info, progress_state, graders, fingerprints)
            scheduler = TrialScheduler(
                _trial_budget(setup, info, context, progress_state, results),
                *(results, progress_state, error_limit),
                prompts=evaluation.prompts,
                concurrency=setup.concurrency,
            )
            is_budget_spent = await scheduler.run(
                open_cases, plan, _called_targets(setup), repeats=spec.repeats, rerun_policy=setup.rerun_policy
            )
        _update_budget(progress_state, await setup.client.get_info(), setup.calls_of_earlier_sessions)
        final_summary = summary(spent=is_budget_spent)
        record, findings = await _collect_findings(setup, record, results)
        await asyncio.to_thread(write_record, setup.output, record, final_summary, ended=True, findings=findings)
    return final_summary


def _progress_state(setup: RunSetup, cases: int, results: ResultFile, plan: RerunPlan) -> ProgressState:
    return ProgressState(
        column_names(setup.targets, setup.evaluation.prompt_names),
        cases=cases,
        repeats=setup.evaluation.spec.repeats,
        resume_state=results.resume_state,
        pending=plan.pending,
        max_calls_per_trial=max_calls_per_trial(setup.evaluation),
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
        selection=setup.selection,
        max_calls_per_trial=max_calls_per_trial(setup.evaluation),
    )


async def _collect_findings(setup: RunSetup, record: RunRecord, results: ResultFile) -> tuple[RunRecord, RunFindings]:
    """The statistics of the stored rows, and the cost of the run; the record has the usage of its session then."""

    def analyse_rows() -> Analysis:
        evaluation, rows = setup.evaluation, results.current_rows()
        columns = column_names(setup.targets, evaluation.prompt_names)
        tagged = build_tagged_frames(rows, columns, repeats=evaluation.spec.repeats)
        return analyse(tagged.columns, evaluation.spec.reducers, tagged.by_tag)

    analysis = await asyncio.to_thread(analyse_rows)
    spending = None if setup.read_final_spending is None else await setup.read_final_spending()
    if spending is None:
        return record, RunFindings(analysis=analysis)
    record = record.with_session_usage(spending)
    return record, RunFindings(analysis=analysis, cost=record.cost(setup.prices, setup.calls_of_earlier_sessions))


def _grader_env(setup: RunSetup) -> dict[str, str]:
    """The environment that grader processes inherit."""
    return with_proxy_bypass(without_secret_variables(setup.env, setup.hidden_variables), setup.grader_environment)


async def _run_fingerprints(
    setup: RunSetup, info: Info, graders: tuple[GraderRunner, ...], record: RunRecord
) -> RunFingerprints:
    """The fingerprints of everybody who is asked in this run, as workers registered them, and of the graders.

    Targets that this command does not call are in it if they are served now.
    """
    called = _called_targets(setup)
    served = [name for name in setup.targets if name in called or name in info.available_targets]
    names = dict.fromkeys(name for _, name in _target_references(setup, served))
    known: dict[str, str | None] = {name: (info.target_fingerprints or {}).get(name) for name in names}
    models = {one: setup.target_models[name] for name, one in known.items() if one and name in setup.target_models}
    by_target = await grader_fingerprints(setup.evaluation, graders, setup.judge_targets, known, _grader_env(setup))
    return RunFingerprints(
        targets=known,
        graders=by_target,
        models={**record.models, **models},
        generation=record.generation + setup.regrades,
    )


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


def _called_targets(setup: RunSetup) -> list[str]:
    """The targets under test that this command may call, or whose answers it grades."""
    return [target for target in setup.targets if setup.selection.has_target(target)]


def _target_references(setup: RunSetup, targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each of these targets and of their judges, with the place that names it."""
    path = setup.evaluation.path
    for target in targets:
        yield f"{path}: targets", target
    for index, grader in enumerate(setup.evaluation.spec.graders):
        if isinstance(grader, CommandGrader | FunctionGrader | JudgeGrader):
            for target in targets:
                yield f"{path}: graders[{index}].judge_target", judge_target_of(grader, target, setup.judge_targets)


async def _raise_budget_if_needed(setup: RunSetup, info: Info, plan: RerunPlan) -> Info:
    """If the user named no budget, raise the session's limit to the most calls that the pending trials can make.

    Calls that were charged already, also for earlier tries, are added to it.
    """
    needed_calls = info.call_count + plan.most_calls(max_calls_per_trial(setup.evaluation))
    if setup.raise_budget is not None and needed_calls > info.max_calls:
        await setup.raise_budget(needed_calls)
        return await setup.client.get_info()
    return info


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


async def _update_cost(setup: RunSetup, record: RunRecord, progress_state: ProgressState) -> None:
    """Read the usage so far and update the cost in the progress state, if prices and usage are available."""
    spending = await setup.read_current_spending() if setup.read_current_spending is not None and setup.prices else None
    if spending is not None:
        record = record.with_session_usage(spending)
        progress_state.cost = record.cost(setup.prices, setup.calls_of_earlier_sessions)


@asynccontextmanager
async def _displayed_progress(setup: RunSetup, record: RunRecord, progress_state: ProgressState) -> AsyncIterator[None]:
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
                    await _update_cost(setup, record, progress_state)
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
