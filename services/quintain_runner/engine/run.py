"""Runs an evaluation from its files to the last row.

Checks targets and graders, resumes stored results, schedules the trials, and writes the run record. The
run ends when every trial has a row or when the call budget is spent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace

from quintain.contracts.session import Info
from quintain.errors import BusError, Fault
from quintain.graders import Case
from quintain.observe import logs, semconv
from quintain.observe.spans import span
from quintain_runner.engine.rerun_plan import OpenCases, Planner, RerunPlan
from quintain_runner.engine.run_setup import PlanSession, RunSetup, SessionRequest
from quintain_runner.engine.scheduler import ErrorLimit, TrialScheduler
from quintain_runner.engine.trial import TrialBudget
from quintain_runner.graders.base import GraderRunner, GradingContext, judge_target_of, with_proxy_bypass
from quintain_runner.graders.factory import grader_fingerprints, open_graders
from quintain_runner.plan.changes import RunFingerprints
from quintain_runner.plan.dataset import read_cases
from quintain_runner.plan.trials import Scoring, check_targets_available, grader_limits
from quintain_runner.report.progress import ProgressState
from quintain_runner.report.progress_display import TICK_SECONDS
from quintain_runner.report.run_record import RunFindings, RunRecord, identity_of, open_record, write_record
from quintain_runner.report.summary import RunSummary, summarize
from quintain_runner.results.row import column_names
from quintain_runner.results.store import ResultFile, open_results
from quintain_runner.spec.graders import CommandGrader, FunctionGrader, JudgeGrader
from quintain_runner.statistics.analysis import Analysis, analyse
from quintain_runner.statistics.frame import build_tagged_frames

#: The interval at which the used budget is read for the progress display, in seconds.
BUDGET_POLL_SECONDS = 2.0

#: The cost is read once in this many budget polls, because the ledger sums over every call for it.
BUDGET_POLLS_PER_COST_POLL = 10


def update_budget(progress_state: ProgressState, info: Info, session: PlanSession, *, has_ended: bool = False) -> None:
    """Copy the session's counters to the progress state, including the calls of earlier sessions of the plan.

    A call that is only reserved is none yet. One that runs counts when the run ``has_ended``: until then it may be
    refunded, and the counter would run backwards.
    """
    earlier_calls = session.calls_of_earlier_sessions - session.calls_of_earlier_plans
    own_calls = info.call_count - info.reserved - (0 if has_ended else info.running)
    progress_state.budget.update(own_calls + earlier_calls, info.max_calls + earlier_calls)
    progress_state.budget.calls_of_earlier_plans = session.calls_of_earlier_plans


async def _update_cost(setup: RunSetup, session: PlanSession, record: RunRecord, progress_state: ProgressState) -> None:
    """Read the usage so far and update the cost in the progress state, if prices and usage are available."""
    read_spending = session.read_current_spending
    spending = await read_spending() if read_spending is not None and setup.prices else None
    if spending is not None:
        record = record.with_session_usage(spending)
        progress_state.cost = record.cost(setup.prices, session.calls_of_earlier_sessions)


@asynccontextmanager
async def displayed_progress(
    setup: RunSetup, session: PlanSession, record: RunRecord, progress_state: ProgressState
) -> AsyncIterator[None]:
    """Show the progress of the run inside the ``async with`` block: redraw it, and poll the budget and the cost."""

    async def refresh_display() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            setup.progress.tick()

    async def poll_budget() -> None:
        for times in itertools.count(1):
            await asyncio.sleep(BUDGET_POLL_SECONDS)
            try:
                update_budget(progress_state, await session.client.get_info(), session)
                if times % BUDGET_POLLS_PER_COST_POLL == 1:
                    await _update_cost(setup, session, record, progress_state)
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


async def run_evaluation(setup: RunSetup) -> RunSummary:
    """Run an evaluation, or resume it.

    Raises `ConfigError` before the first call if the evaluation or its files are invalid, and `BusError` if the broker
    is lost. However the run ends, also by an interrupt, all rows written so far are complete and kept.
    """
    evaluation, options, dataset_stats = setup.evaluation, setup.options, setup.dataset_stats
    info = await setup.client.get_info()
    check_targets_available(_target_references(setup, _called_targets(setup)), info.available_targets)
    async with (
        open_graders(
            evaluation,
            _grader_env(setup),
            gateway_url=setup.grader_environment.gateway_url,
            output=options.folder,
        ) as graders,
        open_results(options.folder, keeps_content=options.keeps_content) as results,
    ):
        identity = identity_of(evaluation, dataset_stats.sha256)
        record = await asyncio.to_thread(open_record, options.folder, evaluation, setup.targets, identity, setup.origin)
        fingerprints = await _run_fingerprints(setup, info, graders, record)

        def open_cases() -> closing[Generator[Case, None, None]]:
            return closing(read_cases(dataset_stats.source))

        plan = await _planner(setup, results, open_cases, fingerprints).plan()
        plan.different_seconds = {
            name: (info.now - since) / 1000
            for name, since in (info.different_since or {}).items()
            if name in fingerprints.targets
        }
        record = record.with_command(options.command, fingerprints, plan.to_wire(), options.selection.to_wire())
        setup.on_plan(plan)
        session, record = await _open_session(setup, plan, record)
        run = _Run(
            setup=setup,
            session=session,
            plan=plan,
            results=results,
            open_cases=open_cases,
            fingerprints=fingerprints,
            graders=graders,
            progress_state=_progress_state(setup, dataset_stats.cases, results, plan),
        )
        return await run.execute(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run whose plan and session are known."""

    setup: RunSetup
    session: PlanSession
    plan: RerunPlan
    results: ResultFile
    open_cases: OpenCases
    fingerprints: RunFingerprints
    graders: tuple[GraderRunner, ...]
    progress_state: ProgressState

    async def execute(self, record: RunRecord) -> RunSummary:
        """Execute the trials, and write the record before the first call and after the last."""
        setup, evaluation = self.setup, self.setup.evaluation
        info = await self.session.client.get_info()
        update_budget(self.progress_state, info, self.session)
        error_limit = ErrorLimit(setup.options.error_policy)
        await asyncio.to_thread(write_record, setup.options.folder, record, self._summary(error_limit), ended=False)
        run_id = self.session.session_id or info.session_id
        with span(semconv.run_span(evaluation.name, run_id)), logs.log_context(run_id=run_id):
            async with displayed_progress(setup, self.session, record, self.progress_state):
                scheduler = TrialScheduler(
                    self._trial_budget(info),
                    self.results,
                    self.progress_state,
                    error_limit,
                    prompts=evaluation.prompts,
                    concurrency=setup.options.concurrency,
                )
                is_budget_spent = await scheduler.run(
                    self.open_cases,
                    self.plan,
                    _called_targets(setup),
                    repeats=evaluation.spec.repeats,
                )
        update_budget(self.progress_state, await self.session.client.get_info(), self.session, has_ended=True)
        record, findings = await _collect_findings(setup, self.session, record, self.results)
        summary = self._summary(error_limit, spent=is_budget_spent, calls_made_twice=record.calls_made_twice)
        await asyncio.to_thread(write_record, setup.options.folder, record, summary, ended=True, findings=findings)
        return summary

    def _summary(self, error_limit: ErrorLimit, *, spent: bool = False, calls_made_twice: int = 0) -> RunSummary:
        summary = summarize(
            self.progress_state,
            threshold=self.setup.evaluation.spec.threshold,
            is_budget_spent=spent,
            calls_made_twice=calls_made_twice,
            results=self.results.path,
            parked_targets=error_limit.parked_targets,
        )
        unavailable = self.setup.evaluation.unavailable_graders
        return replace(
            summary,
            has_open_trials=self._has_open_trials(summary),
            unavailable_graders=unavailable,
            different_seconds=self.plan.different_seconds,
        )

    def _has_open_trials(self, summary: RunSummary) -> bool:
        """Whether the same command, or one that selects more, would execute any trial."""
        policy, total = self.setup.options.rerun_policy, summary.total
        return bool(
            total.waiting
            or self.plan.not_selected
            or (policy.rerun_errors and total.errors)
            or (policy.rerun_in_doubt and total.in_doubt)
        )

    def _trial_budget(self, info: Info) -> TrialBudget:
        """Calls are reserved if the plan's limit may not be enough, or another session's, on whose budget it draws."""
        most_calls = self.plan.calls_left.most
        may_lack_calls = self.session.is_bounded and most_calls > info.max_calls - info.call_count
        return TrialBudget(
            _grading_context(self, info),
            is_scarce=may_lack_calls or info.parent_id is not None,
            most_calls=self.results.resume_state.most_grader_calls,
        )


async def _open_session(setup: RunSetup, plan: RerunPlan, record: RunRecord) -> tuple[PlanSession, RunRecord]:
    """Open the session of the plan: a new one, if an earlier plan had another identity; the record names it."""
    identity, earlier = plan.identity, record.plan
    request = SessionRequest(
        is_changed=earlier is not None and identity.is_changed_from(earlier),
        most_calls=plan.calls_left.most,
    )
    session = await setup.open_session(request)
    if earlier is None or request.most_calls:
        # A changed plan whose trials all wait has no budget yet: the command that executes them opens its session.
        record = replace(record, plan=identity if earlier is None else identity.with_known_targets_of(earlier))
    origin = replace(record.origin, session_id=session.session_id, calls_location=session.calls_location)
    return session, replace(record, origin=origin, usage={**record.usage, **session.ended_usage})


def _progress_state(setup: RunSetup, cases: int, results: ResultFile, plan: RerunPlan) -> ProgressState:
    return ProgressState(
        column_names(setup.targets, setup.evaluation.prompt_names),
        cases=cases,
        repeats=setup.evaluation.spec.repeats,
        resume_state=results.resume_state,
        pending=plan.pending,
        calls_left=plan.calls_left.copy(),
    )


def _planner(setup: RunSetup, results: ResultFile, open_cases: OpenCases, fingerprints: RunFingerprints) -> Planner:
    return Planner(
        results=results,
        open_cases=open_cases,
        targets=setup.targets,
        prompts=setup.evaluation.prompts,
        repeats=setup.evaluation.spec.repeats,
        fingerprints=fingerprints,
        policy=setup.options.rerun_policy,
        scoring=Scoring.of(setup.evaluation.spec),
        selection=setup.options.selection,
        grader_limits=grader_limits(setup.evaluation),
    )


async def _collect_findings(
    setup: RunSetup, session: PlanSession, record: RunRecord, results: ResultFile
) -> tuple[RunRecord, RunFindings]:
    """The statistics of the stored rows, and the cost of the run; the record has the usage of its session then."""

    def analyse_rows() -> Analysis:
        evaluation, rows = setup.evaluation, results.current_rows()
        columns = column_names(setup.targets, evaluation.prompt_names)
        tagged = build_tagged_frames(rows, columns, repeats=evaluation.spec.repeats)
        return analyse(tagged.columns, evaluation.spec.reducers, tagged.by_tag)

    analysis = await asyncio.to_thread(analyse_rows)
    spending = None if session.read_final_spending is None else await session.read_final_spending()
    if spending is not None:
        record = record.with_session_usage(spending)
    cost = record.cost(setup.prices, session.calls_of_earlier_sessions) if record.usage else None
    return record, RunFindings(analysis=analysis, cost=cost)


def _grader_env(setup: RunSetup) -> dict[str, str]:
    """The environment of which grader processes get what is allowed."""
    return with_proxy_bypass(setup.env, setup.grader_environment)


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
        unavailable_graders=frozenset(setup.evaluation.unavailable_graders),
        models={**record.models, **models},
        generation=record.generation + setup.options.regrades,
    )


def _grading_context(run: _Run, info: Info) -> GradingContext:
    """The context that the graders of the run share."""
    setup, progress_state = run.setup, run.progress_state
    return GradingContext(
        run_name=setup.evaluation.name,
        session=run.session.client,
        read_session_info=setup.read_session_info,
        close_session=setup.close_session,
        environment=setup.grader_environment,
        graders=run.graders,
        judge_targets=setup.judge_targets,
        max_calls=info.max_calls,
        process_slots=asyncio.Semaphore(setup.options.grader_concurrency),
        on_retry=lambda column, error: progress_state.target_gauges[column].record_retry(error),
        prices=setup.prices,
        fingerprints=run.fingerprints,
        scoring=Scoring.of(setup.evaluation.spec),
    )


def _called_targets(setup: RunSetup) -> list[str]:
    """The targets under test that this command may call, or whose answers it grades."""
    return [target for target in setup.targets if setup.options.selection.has_target(target)]


def _target_references(setup: RunSetup, targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each of these targets and of their judges, with the place that names it."""
    path = setup.evaluation.path
    for target in targets:
        yield f"{path}: targets", target
    for index, grader in enumerate(setup.evaluation.spec.graders):
        if isinstance(grader, CommandGrader | FunctionGrader | JudgeGrader):
            for target in targets:
                yield f"{path}: graders[{index}].judge_target", judge_target_of(grader, target, setup.judge_targets)
