"""Schedules the trials of a run, and begins no more of a target that has failed too often."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from quintain.errors import Fault, ProviderFailed, TargetUnavailable
from quintain.graders import Case
from quintain_runner.engine.comparisons import Comparisons
from quintain_runner.engine.cost_gate import CostGate, CostHold
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.engine.run_settings import ErrorPolicy, RunSettings
from quintain_runner.engine.trial import TrialOutcome, run_trial
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders.base import ANSWERED_FAULTS
from quintain_runner.plan.changes import Action, RerunPolicy, decide, needed_calls
from quintain_runner.plan.trials import PlannedQuestion, Trial, pending_trials, planned_questions
from quintain_runner.report.progress import ProgressState
from quintain_runner.report.summary import ParkedTarget
from quintain_runner.results.counts import ANSWERED
from quintain_runner.results.row import TARGET_CHANGED, Row, RowKey, column_name, split_column
from quintain_runner.results.store import ResultFile

#: A target is parked if at least this many of its trials have finished, and at least one in five of them is an error.
_MIN_TRIALS_FOR_SHARE = 50
_TRIALS_PER_ERROR = 5

#: What a provider answers to a credential that it does not accept: each further call is answered so too.
HTTP_REFUSED = 401

#: A target is parked after this many `TARGET_CHANGED` errors in a row.
MAX_CHANGED_IN_ROW = 3

#: The faults that count: of credentials, of connections and of servers.
ENDPOINT_FAULTS = (TargetUnavailable, ProviderFailed)


class _TargetErrors:
    """The counts of one target in this invocation, and the code and text of its last error that counts."""

    def __init__(self) -> None:
        self.finished = self.errors = self.errors_in_row = self.changed_in_row = 0
        self.is_refused = False
        self.last_code = self.last_error = ""


class ErrorLimit:
    """Counts the errors of each target in this invocation, and knows which targets are parked because of them.

    Rows of earlier invocations do not count: the endpoint may have been repaired since.
    """

    def __init__(self, policy: ErrorPolicy) -> None:
        self._policy = policy
        self._errors: dict[str, _TargetErrors] = {}
        self._parked: dict[str, ParkedTarget] = {}

    @property
    def is_fail_fast(self) -> bool:
        """Whether the first error ends the run."""
        return self._policy.fail_fast

    @property
    def parked_targets(self) -> dict[str, ParkedTarget]:
        """The parked targets by name, in the order in which they were parked."""
        return dict(self._parked)

    def may_begin(self, target: str) -> bool:
        """Whether another trial of this target may begin."""
        return target not in self._parked and not (self._policy.fail_fast and self._parked)

    def record(self, target: str, fault: Fault | None, *, changed: str | None = None) -> None:
        """Count a finished trial; ``fault`` is the fault of its call of the target, None if the target answered.

        ``changed`` is the text of its error if that is `TARGET_CHANGED`, of the target or of a judge.
        """
        counts = self._errors.setdefault(target, _TargetErrors())
        counts.finished += 1
        if changed is not None:
            counts.changed_in_row += 1
            counts.last_code, counts.last_error = TARGET_CHANGED, changed
        elif fault is None:
            counts.errors_in_row = counts.changed_in_row = 0
        elif isinstance(fault, ANSWERED_FAULTS):
            counts.errors_in_row = 0
        elif isinstance(fault, ENDPOINT_FAULTS):
            counts.errors += 1
            counts.errors_in_row += 1
            counts.last_code, counts.last_error = fault.code, fault.message
            status = None if fault.provider_error is None else fault.provider_error.status
            counts.is_refused = isinstance(fault, TargetUnavailable) and status == HTTP_REFUSED
        is_refused = counts.is_refused and self._policy.max_errors
        reason = "its credential was refused" if is_refused else self._reason_to_park(counts)
        if reason is not None:
            self.park(target, ParkedTarget(reason=reason, code=counts.last_code, error=counts.last_error))

    def park(self, target: str, parked: ParkedTarget) -> None:
        """Begin no more trials of a target; a parked one keeps its reason."""
        self._parked.setdefault(target, parked)

    def _reason_to_park(self, counts: _TargetErrors) -> str | None:
        max_errors = self._policy.max_errors
        if self._policy.fail_fast and (counts.errors or counts.changed_in_row):
            return "its first error, with --fail-fast"
        if not max_errors:
            return None
        if counts.changed_in_row >= min(max_errors, MAX_CHANGED_IN_ROW):
            return f"{counts.changed_in_row} answers in a row of another configuration"
        if counts.errors_in_row >= max_errors:
            return f"{counts.errors_in_row} errors in a row"
        if counts.finished >= _MIN_TRIALS_FOR_SHARE and counts.errors * _TRIALS_PER_ERROR >= counts.finished:
            return f"{counts.errors} errors in {counts.finished} finished trials"
        return None


#: How long the first trials of a target are waited for, in seconds: slow targets are not delayed by more.
FIRST_TRIALS_SECONDS = 5.0


class StartGate:
    """Lets as few trials of one target run at once as park it, until one of them ends with the planned configuration;
    and again after each `target_changed`, until the next such trial.

    At first that lasts ``seconds`` at most; 0 switches it off, for a target without a known configuration.
    """

    def __init__(self, seconds: float = FIRST_TRIALS_SECONDS) -> None:
        self._opens_at: float | None = asyncio.get_running_loop().time() + seconds
        self._is_open = not seconds
        self._running_count = 0
        self._ended = asyncio.Event()

    async def enter(self) -> None:
        """Wait until another trial may begin, and count it."""
        while not self._is_open and self._running_count >= MAX_CHANGED_IN_ROW:
            self._ended.clear()
            try:
                async with asyncio.timeout_at(self._opens_at):
                    await self._ended.wait()
            except TimeoutError:
                self._is_open = True
        self._running_count += 1

    def leave(self, *, is_changed: bool) -> None:
        """Count out a trial; ``is_changed`` says that another configuration answered."""
        self._running_count -= 1
        self._is_open = not is_changed
        if is_changed:
            self._opens_at = None
        self._ended.set()


#: How many trials of a target are read ahead in one step. They are read in a thread, so that skipping a million graded
#: trials, or a slow disk, does not block the event loop.
_PREFETCHED_TRIALS = 128


#: So many rows at most wait for the disk beside the trials that run.
_MAX_UNWRITTEN_ROWS = 256


#: Gives the trials of a target to execute, of these cases.
TrialsOf = Callable[[Iterable[Case], str], Iterator[Trial]]


class TrialScheduler:
    """Executes the trials of a run and stores their rows; its concurrency bounds the parallel trials per target, under
    all prompts together.

    ``error_limit`` records how each trial ended, and decides whether another trial of its target may begin; errors of
    an outage that is waited out do not count. ``budget`` reserves the calls of a trial, and has the context of its
    graders. A target whose next trial is not paid for begins no more; others, which may cost less, go on.
    """

    def __init__(
        self,
        settings: RunSettings,
        budget: TrialBudget,
        cost_gate: CostGate,
        results: ResultFile,
        progress_state: ProgressState,
        error_limit: ErrorLimit,
    ) -> None:
        self._settings, self._budget, self._context = settings, budget, budget.context
        self._results, self._progress_state, self._error_limit = results, progress_state, error_limit
        self._cost_gate = cost_gate
        #: The targets of which no trial begins any more, because the budget is spent.
        self._spent_targets = set[str]()
        #: The tasks of the trials that wait for answers, by target.
        self._calling: defaultdict[str, set[asyncio.Task[None]]] = defaultdict(set)
        #: The trials that got no row, because the budget was spent.
        self.left_out: list[RowKey] = []
        #: Rows that are not on the disk yet: a trial has its slot no longer then, unless they are too many.
        self._unwritten = asyncio.Semaphore(_MAX_UNWRITTEN_ROWS)

    async def run(self, plan: RerunPlan, comparisons: Comparisons) -> bool:
        """Execute every pending trial of the plan, except those of parked targets, and then compare the rows that there
        are. Returns True if the budget was spent before all of them were executed.

        Raises the first error that is not a `Fault`; the other trials are cancelled then.
        """

        recording = self._settings.options.recording
        not_recorded = frozenset() if recording is None else frozenset(recording.run.left_out)

        def pending(cases: Iterable[Case], target: str) -> Iterator[Trial]:
            trials = pending_trials(
                self._questions(plan, (case for case in cases if plan.is_pending(case.id, target))),
                target,
                find_row=self._results.find,
                rerun_policy=plan.policy,
                fingerprints=self._context.fingerprints,
                has_left=plan.has_left,
            )
            return (trial for trial in trials if trial.key not in not_recorded)

        open_targets = {split_column(column)[0] for column, count in plan.pending.items() if count}
        await self._run_targets(plan, [name for name in self._settings.targets if name in open_targets], pending)
        if comparisons.graders and not (self._spent_targets or not_recorded):
            with closing(await asyncio.to_thread(self._results.reader)) as rows:
                selection = self._settings.selection.cases

                def compared(cases: Iterable[Case], target: str) -> Iterator[Trial]:
                    selected = (case for case, is_selected in selection.mark_cases(cases) if is_selected)
                    return comparisons.trials(self._questions(plan, selected), target, rows.find)

                await self._run_targets(plan, self._settings.targets, compared)
        return bool(self._spent_targets or not_recorded)

    def _questions(self, plan: RerunPlan, cases: Iterable[Case]) -> Iterator[PlannedQuestion]:
        evaluation = self._settings.evaluation
        return planned_questions(cases, evaluation.asked_prompts, evaluation.spec.repeats, plan.occurrences)

    async def _run_targets(self, plan: RerunPlan, targets: Iterable[str], trials_of: TrialsOf) -> None:
        """Execute these trials of the targets."""
        try:
            async with asyncio.TaskGroup() as task_group:
                for target in targets:
                    task_group.create_task(self._run_target(plan, target, trials_of))
        except BaseExceptionGroup as failures:
            raise _root_failure(failures) from None

    def give_up(self, target: str, parked: ParkedTarget) -> None:
        """Begin no more trials of a target, and end those that wait for an answer, without a row.

        What the fleet still answers of their calls is stored under the ids by which the same command asks again.
        """
        self._error_limit.park(target, parked)
        self._show_parked(target)
        for task in self._calling[target]:
            task.cancel()

    async def _run_target(self, plan: RerunPlan, target: str, trials_of: TrialsOf) -> None:
        """Execute these trials of one target, until there are none left or the budget is spent."""
        slots = asyncio.Semaphore(self._settings.options.concurrency)
        is_known = self._context.fingerprints.targets.get(target) is not None
        gate = StartGate() if is_known else StartGate(seconds=0)
        with self._settings.open_cases() as cases:
            pending = trials_of(cases, target)
            async with asyncio.TaskGroup() as task_group:
                while prefetched := await _prefetch(pending):
                    for number, trial in enumerate(prefetched):
                        await slots.acquire()
                        await gate.enter()
                        cost = self._cost_gate.most_cost(trial)
                        if not await self._cost_gate.enter(cost):
                            self._spent_targets.add(target)
                        elif target in self._spent_targets or not self._error_limit.may_begin(target):
                            self._cost_gate.leave(cost)
                        else:
                            hold = self._cost_gate.hold(cost)
                            task_group.create_task(self._run_trial(trial, slots, gate, plan.policy, hold))
                            continue
                        if target in self._spent_targets:
                            await self._leave_out(prefetched[number:], pending)
                        return

    async def _leave_out(self, trials: Sequence[Trial], pending: Iterator[Trial]) -> None:
        """Note that these trials, and those that follow, get no row."""
        while trials:
            self.left_out += (trial.key for trial in trials if not trial.opponents)
            trials = await _prefetch(pending)

    async def _run_trial(
        self, trial: Trial, slots: asyncio.Semaphore, gate: StartGate, policy: RerunPolicy, hold: CostHold
    ) -> None:
        """Execute one trial, which is counted with its cost, release its slot, and store its row."""
        self._progress_state.trial_started(trial.key, time.monotonic())
        is_changed = False
        try:
            outcome = await self._call(trial, hold)
            if outcome.budget_spent:
                self._spent_targets.add(trial.target)
            if (row := outcome.row) is not None:
                self._budget.add_row(row)
                self._cost_gate.add_row(row)
                is_changed = await self._record_outcome(trial, row, outcome.target_fault)
                await self._unwritten.acquire()
        finally:
            self._progress_state.trial_ended(trial.key)
            gate.leave(is_changed=is_changed)
            hold.leave()
            slots.release()
        if row is None:
            await self._leave_out([trial], iter(()))
            return
        try:
            await self._results.append(row, supersedes=trial.superseded is not None)
        finally:
            self._unwritten.release()
        if trial.opponents:
            self._progress_state.add_comparisons(row, trial)
        else:
            self._progress_state.add_row(row, trial.superseded)
            self._count_calls_left(trial, row, policy)

    async def _call(self, trial: Trial, hold: CostHold) -> TrialOutcome:
        """Execute a trial; until it has its row it may be given up."""
        task, calling = asyncio.current_task(), self._calling[trial.target]
        assert task is not None, "a trial runs in a task"
        calling.add(task)
        try:
            return await run_trial(trial, self._context, self._budget, hold.may_go_on)
        finally:
            calling.discard(task)

    def _count_calls_left(self, trial: Trial, row: Row, policy: RerunPolicy) -> None:
        """Replace what the trial needed by what the same command would need for its row."""
        case, target, fingerprints = trial.case, trial.target, self._context.fingerprints
        before = Action.ASK if trial.kept is None else Action.GRADE
        after = Action.KEEP
        if row.open_status not in ANSWERED:
            after = decide(row, case, target, fingerprints, policy).action
        calls_left = self._progress_state.calls_left
        needed = needed_calls(before, trial.kept, case, target, fingerprints)
        calls_left.add(trial.column, needed, times=-1)
        self._progress_state.calls_open.add(trial.column, needed, times=-1)
        calls_left.add(trial.column, needed_calls(after, row, case, target, fingerprints))

    async def _record_outcome(self, trial: Trial, row: Row, fault: Fault | None) -> bool:
        """Count how the trial ended; return whether another configuration than the planned one answered."""
        target, error = trial.target, row.error
        changed = error.error if error is not None and error.code == TARGET_CHANGED else None
        is_counted = self._error_limit.is_fail_fast or not (
            isinstance(fault, ENDPOINT_FAULTS) and await self._context.waits.retry_after_quota(target, fault)
        )
        if is_counted:
            self._error_limit.record(target, fault, changed=changed)
        if target in self._error_limit.parked_targets:
            self._show_parked(target)
        return changed is not None

    def _show_parked(self, target: str) -> None:
        for prompt in self._settings.evaluation.prompts:
            self._progress_state.target_gauges[column_name(target, prompt.name)].is_parked = True


async def _prefetch(pending: Iterable[Trial]) -> list[Trial]:
    """Read the next pending trials in a thread. If it is cancelled, it still waits for the thread to finish."""
    reading = asyncio.ensure_future(asyncio.to_thread(lambda: list(islice(pending, _PREFETCHED_TRIALS))))
    try:
        return await asyncio.shield(reading)
    finally:
        # A thread cannot be cancelled, and the file that it reads must stay open until it has finished.
        await asyncio.wait([reading])


def _root_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in nested exception groups: later ones are consequences of it in the other trials."""
    first = failures.exceptions[0]
    return _root_failure(first) if isinstance(first, BaseExceptionGroup) else first
