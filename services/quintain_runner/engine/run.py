"""Runs an evaluation whose settings are checked, from its plan to its last row.

Resumes stored results, schedules the trials, and writes the run record. The run ends when every trial has a row or when
the call budget is spent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from quintain.contracts.invoke import JsonObject
from quintain.contracts.money import to_dollars
from quintain.contracts.session import Info
from quintain.errors import BusError, ConfigError, Fault
from quintain.observe import logs, semconv
from quintain.observe.spans import span
from quintain_runner.engine.answers import RunAnswers
from quintain_runner.engine.backend import Backend
from quintain_runner.engine.comparisons import Comparisons
from quintain_runner.engine.cost_gate import CostGate
from quintain_runner.engine.cost_limit import cost_problems
from quintain_runner.engine.gates import measured_gates
from quintain_runner.engine.judges import agents_of, settings_of
from quintain_runner.engine.planned_run import open_planned_run
from quintain_runner.engine.quota_watch import POLL_SECONDS, QuotaWatch
from quintain_runner.engine.recording import RecordedAnswers, RecordedRun, recorded_session
from quintain_runner.engine.rerun_plan import RerunPlan, target_references
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.engine.scheduler import ErrorLimit, TrialScheduler
from quintain_runner.engine.session import NewSession, RunSession, RunSessions, read_final_info, release_command
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders.base import GraderRunner, GradingContext, judge_references
from quintain_runner.graders.factory import build_own
from quintain_runner.plan.scoring import Scoring
from quintain_runner.report.progress import ProgressState
from quintain_runner.report.progress_display import TICK_SECONDS, NoProgressDisplay, ProgressDisplay
from quintain_runner.report.run_file import RunFile, write_run
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.summary import RunSummary, summarize
from quintain_runner.results.row import RowKey
from quintain_runner.results.store import ResultFile
from quintain_runner.statistics.analysis import Analysis, analyse_run

#: The interval at which the used budget is read for the progress display, in seconds.
BUDGET_POLL_SECONDS = 2.0

#: The cost is read once in this many budget polls, because the ledger sums over every call for it.
BUDGET_POLLS_PER_COST_POLL = 10


class RunListener:
    """Is told how a run goes on; here it shows nothing."""

    #: What shows the progress of the trials.
    progress: ProgressDisplay = NoProgressDisplay()

    def before_files(self) -> None:
        """The run begins. What is raised ends it, before anything is read."""

    def on_set_aside(self, previous: Path) -> None:
        """The earlier results are in this folder."""

    def on_checked(self, run: RunSettings, location: str) -> None:
        """Nothing is wrong with the files, and the services at ``location`` are connected."""

    def on_new_session(self, session: NewSession) -> None:
        """A session takes the place of the one before."""

    def on_waiting(self, info: Info, targets: tuple[str, ...]) -> None:
        """The run waits, because no worker has registered a target."""

    def on_plan(self, plan: RerunPlan) -> None:
        """This is what the command executes."""

    def on_end(self, report: RunReport) -> None:
        """The run has ended, and its folder is still locked. Called in a thread."""


async def run_evaluation(
    run: RunSettings, backend: Backend, sessions: RunSessions, listener: RunListener
) -> RunSummary:
    """Run an evaluation, or resume it.

    Raises `ConfigError` before the first call if a target is not served or the results cannot be continued, and
    `BusError` if the broker is lost. However the run ends, also by an interrupt, all rows written so far are complete
    and kept.
    """
    info = await sessions.client.get_info()
    async with open_planned_run(run, info, backend.gateway_url) as planned:
        plan, results = planned.plan, planned.results
        listener.on_plan(plan)
        session = await sessions.open(most_calls=plan.calls_left.most, calls_in_rows=planned.calls_in_rows)
        record = planned.record
        record = record.with_fields(session_id=session.session_id or record.session_id, calls=session.calls_location)
        record = record.with_usage(session.ended_usage)
        execution = _Execution(
            run=run,
            backend=backend,
            session=session,
            plan=plan,
            comparisons=planned.comparisons,
            results=results,
            graders=planned.graders,
            answers=planned.answers,
            baseline=planned.baseline,
            progress=listener.progress,
            progress_state=ProgressState(
                record.configuration.columns,
                cases=run.dataset.cases,
                repeats=run.evaluation.spec.repeats,
                resume_state=results.resume_state,
                pending=plan.pending,
                calls_left=plan.calls_left.copy(),
            ),
        )
        return await execution.execute(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Execution:
    """The execution of a plan, in its session."""

    run: RunSettings
    backend: Backend
    session: RunSession
    plan: RerunPlan
    comparisons: Comparisons
    results: ResultFile
    graders: tuple[GraderRunner, ...]
    answers: RunAnswers | RecordedAnswers
    baseline: RunReport | None
    progress: ProgressDisplay
    progress_state: ProgressState

    async def execute(self, record: RunFile) -> RunSummary:
        """Execute the trials, and write the record before the first call and after the last."""
        run, evaluation, folder = self.run, self.run.evaluation, self.run.options.folder
        self.progress_state.money.warn_at = evaluation.spec.warn_at
        self.progress_state.rows_to_compare = self.plan.compared
        self.progress_state.warnings = self.answers.warnings
        info = await self.session.client.get_info()
        self._require_bounded_costs(info)
        update_budget(self.progress_state, info, self.session)
        error_limit = ErrorLimit(run.options.error_policy)
        before = record.with_summary(self._summary(error_limit)).with_fields(statistics=None)
        await asyncio.to_thread(write_run, folder, before, ended=False)
        run_id = self.session.session_id or info.session_id
        with span(semconv.run_span(evaluation.name, run_id)), logs.log_context(run_id=run_id):
            quotas = self._quota_watch()
            # Known before the first call: deadlines allow the wait for a quota.
            await quotas.refresh()
            budget = self._trial_budget(info, quotas)
            cost_gate = CostGate(budget, info, self.session.client.get_info)
            scheduler = TrialScheduler(run, budget, cost_gate, self.results, self.progress_state, error_limit)
            async with self._displayed_progress(record), self._watched_quotas(quotas, scheduler):
                is_budget_spent = await scheduler.run(self.plan, self.comparisons)
                await asyncio.to_thread(self.answers.finish)
                update_budget(self.progress_state, await self.session.client.get_info(), self.session, has_ended=True)
        record = await self._with_findings(record, scheduler.left_out)
        summary = self._summary(error_limit, spent=is_budget_spent)
        refused = None if cost_gate.refused is None else to_dollars(cost_gate.refused)
        row_costs = {name: to_dollars(cost) for name, cost in cost_gate.row_costs.items()}
        gates = await asyncio.to_thread(measured_gates, evaluation, record, summary, self.baseline)
        summary = replace(summary, next_row_usd=refused, row_costs_usd=row_costs, other_gates=gates)
        await asyncio.to_thread(write_run, folder, record.with_summary(summary), ended=True)
        return summary

    def _require_bounded_costs(self, info: Info) -> None:
        """Raise `ConfigError` if the run has a limit in money, and what it calls can cost is not known."""
        if info.cost is None or info.cost.left_usd is None or not self.plan.calls_left.most:
            return
        called = {name for _, name in target_references(self.run, self.run.targets)}
        costs = {name: terms for name, terms in (info.target_costs or {}).items() if name in called}
        if problems := cost_problems(costs):
            raise ConfigError("\n".join(problems))

    def _summary(self, error_limit: ErrorLimit, *, spent: bool = False) -> RunSummary:
        summary = summarize(
            self.progress_state,
            threshold=self.run.evaluation.spec.threshold.score,
            is_budget_spent=spent,
            results=self.results.path,
            parked_targets=error_limit.parked_targets,
        )
        return replace(
            summary,
            has_open_trials=self._has_open_trials(summary),
            different_seconds=self.plan.different_seconds,
        )

    def _has_open_trials(self, summary: RunSummary) -> bool:
        """Whether the same command, or one that selects more, would execute any trial."""
        policy, total = self.run.options.rerun_policy, summary.total
        return bool(
            total.waiting
            or total.uncompared
            or self.plan.not_selected
            or self.run.evaluation.only_graders
            or (policy.rerun_errors and (total.errors or total.lacks_votes))
            or (policy.rerun_in_doubt and total.in_doubt)
        )

    def _quota_watch(self) -> QuotaWatch:
        """The watch of the quotas of all targets that are called, also by graders."""
        run = self.run
        calls = {
            target: frozenset(
                (
                    target,
                    *run.dataset.user_targets,
                    *(judge for _, judge in judge_references(run.evaluation, [target], run.judge_targets)),
                    *run.dataset.own_graders.judges_of(target, run.judge_targets),
                )
            )
            for target in run.targets
        }
        return QuotaWatch(self.session.client.get_quotas, calls, give_up_seconds=run.options.give_up_seconds)

    @asynccontextmanager
    async def _watched_quotas(self, quotas: QuotaWatch, scheduler: TrialScheduler) -> AsyncIterator[None]:
        """While the block runs, read the quotas, show what calls wait for, and give up what does not answer."""

        async def watch() -> None:
            while await quotas.refresh():
                for target, parked in quotas.to_give_up().items():
                    scheduler.give_up(target, parked)
                self.progress_state.waits = quotas.wait_lines(self.progress_state)
                await asyncio.sleep(POLL_SECONDS)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    def _trial_budget(self, info: Info, quotas: QuotaWatch) -> TrialBudget:
        """Calls are reserved if the plan's limit may not be enough, or another session's, on whose budget it draws."""
        run, progress_state = self.run, self.progress_state
        may_lack_calls = self.session.is_bounded and self.plan.calls_left.most > info.max_calls - info.call_count
        context = GradingContext(
            run_name=run.evaluation.name,
            session=self.session.client,
            client_of=self.backend.client_of,
            gateway_url=self.backend.gateway_url or "",
            graders=self.graders,
            judge_targets=run.judge_targets,
            max_calls=info.max_calls,
            process_slots=asyncio.Semaphore(run.options.grader_concurrency),
            on_retry=lambda column, error: progress_state.target_gauges[column].record_retry(error),
            prices=run.prices,
            fingerprints=self.comparisons.fingerprints,
            scoring=Scoring.of(run.evaluation.spec),
            timeouts=info.target_timeouts or {},
            costs=info.target_costs or {},
            max_cost_usd=info.max_cost_usd or (None if info.cost is None else info.cost.left_usd or None),
            waits=quotas,
            agents=agents_of(run.config),
            settings=self._target_settings,
            build_own=build_own,
            answers=self.answers,
        )
        return TrialBudget(
            context,
            is_scarce=may_lack_calls or info.parent_id is not None,
            most_calls=self.results.resume_state.most_grader_calls,
        )

    @property
    def _target_settings(self) -> Mapping[str, JsonObject]:
        """The configured settings of the targets, as far as they are known; those of a recording are in it."""
        run, recording = self.run, self.run.options.recording
        if recording is not None:
            return recording.run.settings
        return settings_of(None if run.is_on_fleet else run.config, run.env)

    async def _with_findings(self, record: RunFile, left_out: Sequence[RowKey]) -> RunFile:
        """The record with the statistics of the stored rows, the usage of this command's session, and the bill."""

        def analyse_rows() -> Analysis:
            spec, columns = self.run.evaluation.spec, record.configuration.columns
            return analyse_run(self.results.current_rows, columns, spec.repeats, spec.reducers)

        analysis, session = record.statistics, self.session
        if analysis is None or self.results.is_changed:
            analysis = await asyncio.to_thread(analyse_rows)
        info = None if session.session_id is None else await read_final_info(session.client)
        if info is not None and info.usage is not None:
            record = record.with_usage({info.session_id: info.usage})
        if info is not None:
            usage = [line for each in record.sessions for line in each.usage]
            recorded = RecordedRun(
                info=recorded_session(info, usage, session.calls_of_earlier_sessions),
                settings=dict(self._target_settings),
                graders=record.fingerprints.graders,
                sessionless=sorted(self.run.evaluation.graders_without_session),
                left_out=list(left_out),
            )
            await asyncio.to_thread(self.answers.write_run, recorded)
        bill = None
        if record.sessions:
            earlier = session.calls_of_earlier_sessions
            bill = record.bill_of(self.run.prices, session.session_id, earlier).with_info(info)
            if bill.held and session.session_id is not None:
                bill = bill.with_fields(release_command=release_command(session.session_id, self.run))
        return record.with_fields(statistics=analysis, bill=bill, prices=dict(self.run.prices))

    @asynccontextmanager
    async def _displayed_progress(self, record: RunFile) -> AsyncIterator[None]:
        """Show the progress of the run inside the ``async with`` block: redraw it, and poll the budget and the cost."""

        async def refresh_display() -> None:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                self.progress.tick()

        async def poll_budget() -> None:
            for times in itertools.count(1):
                await asyncio.sleep(BUDGET_POLL_SECONDS)
                try:
                    update_budget(self.progress_state, await self.session.client.get_info(), self.session)
                    if times % BUDGET_POLLS_PER_COST_POLL == 1:
                        await self._update_bill(record)
                except (Fault, BusError):
                    # These values are only displayed, so a failed read is skipped; the next one may succeed.
                    continue

        self.progress.start(self.progress_state)
        tasks = [asyncio.create_task(refresh_display()), asyncio.create_task(poll_budget())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            # asyncio.wait does not raise the tasks' CancelledError in this task.
            await asyncio.wait(tasks)
            self.progress.stop()

    async def _update_bill(self, record: RunFile) -> None:
        """Read the usage so far and update the bill in the progress state."""
        session = self.session
        if session.session_id is None:
            return
        info = await session.client.get_info(usage=True)
        if info.usage is not None:
            record = record.with_usage({session.session_id: info.usage})
            earlier = session.calls_of_earlier_sessions
            bill = record.bill_of(self.run.prices, session.session_id, earlier)
            self.progress_state.bill = bill.with_info(info)


def update_budget(progress_state: ProgressState, info: Info, session: RunSession, *, has_ended: bool = False) -> None:
    """Copy the session's counters to the progress state, including the calls of earlier sessions of the run.

    A call that is only reserved is none yet. One that runs counts when the run ``has_ended``: until then it may be
    refunded, and the counter would run backwards.
    """
    earlier_calls = session.calls_of_earlier_sessions
    own_calls = info.call_count - info.reserved - (0 if has_ended else info.running)
    progress_state.budget.update(own_calls + earlier_calls, info.max_calls + earlier_calls)
    if (warning := progress_state.money.update(own_calls, info.cost, info.max_cost_usd)) is not None:
        progress_state.warnings.append(warning)
