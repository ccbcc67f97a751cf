"""Schedules the trials of a run: at most ``concurrency`` trials of each target run at the same time.

Each target reads the dataset separately, so a slow or throttled target does not delay the others. A trial's slot is
released only after its row is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice

from quintain.errors import Fault
from quintain_runner.engine.error_limit import ErrorLimit, StartGate
from quintain_runner.engine.rerun_plan import OpenCases, RerunPlan
from quintain_runner.engine.trial import TrialBudget, run_trial
from quintain_runner.plan.changes import Action, RerunPolicy, decide, needed_calls
from quintain_runner.plan.trials import Trial, pending_trials, planned_questions
from quintain_runner.progress.state import ProgressState
from quintain_runner.results.row import TARGET_CHANGED, Row, RowStatus, column_name
from quintain_runner.results.store import ResultFile
from quintain_runner.spec.prompts import Prompt

#: How many trials of a target are read ahead in one step. They are read in a thread, so that skipping a million graded
#: trials, or a slow disk, does not block the event loop.
_PREFETCHED_TRIALS = 128


class TrialScheduler:
    """Executes the trials of a run and stores their rows; ``concurrency`` bounds the parallel trials per target,
    under all ``prompts`` together.

    ``error_limit`` records how each trial ended, and decides whether another trial of its target may begin; ``budget``
    reserves its calls, and has the context of its graders.
    """

    def __init__(
        self,
        budget: TrialBudget,
        results: ResultFile,
        progress_state: ProgressState,
        error_limit: ErrorLimit,
        *,
        prompts: Sequence[Prompt],
        concurrency: int,
    ) -> None:
        self._budget, self._context = budget, budget.context
        self._results, self._progress_state = results, progress_state
        self._error_limit, self._prompts, self._concurrency = error_limit, prompts, concurrency
        self._budget_spent = asyncio.Event()

    async def run(self, open_cases: OpenCases, plan: RerunPlan, targets: Iterable[str], *, repeats: int) -> bool:
        """Execute every pending trial of the plan, except those of parked targets. Returns True if the budget was
        spent before all of them were executed.

        ``repeats`` is the number of repeats per case and prompt. Raises the first error that is not a `Fault`; the
        other trials are cancelled then.
        """
        try:
            async with asyncio.TaskGroup() as task_group:
                for target in targets:
                    task_group.create_task(self._run_target(open_cases, plan, target, repeats))
        except BaseExceptionGroup as failures:
            raise _root_failure(failures) from None
        return self._budget_spent.is_set()

    async def _run_target(self, open_cases: OpenCases, plan: RerunPlan, target: str, repeats: int) -> None:
        """Execute the pending trials of one target, until there are none left or the budget is spent."""
        slots = asyncio.Semaphore(self._concurrency)
        is_known = self._context.fingerprints.targets.get(target) is not None
        gate = StartGate() if is_known else StartGate(seconds=0)
        with open_cases() as cases:
            pending = pending_trials(
                planned_questions((case for case in cases if plan.is_pending(case.id, target)), self._prompts, repeats),
                target,
                find_row=self._results.find,
                rerun_policy=plan.policy,
                fingerprints=self._context.fingerprints,
            )
            async with asyncio.TaskGroup() as task_group:
                while prefetched := await _prefetch(pending):
                    for trial in prefetched:
                        await slots.acquire()
                        await gate.enter()
                        if self._budget_spent.is_set() or not self._error_limit.may_begin(target):
                            return
                        task_group.create_task(self._run_trial(trial, slots, gate, plan.policy))

    async def _run_trial(self, trial: Trial, slots: asyncio.Semaphore, gate: StartGate, policy: RerunPolicy) -> None:
        """Execute one trial, store its row, and release its slot."""
        self._progress_state.trial_started(trial.column)
        is_changed = False
        try:
            outcome = await run_trial(trial, self._context, self._budget)
            if outcome.row is not None:
                self._budget.add_row(outcome.row)
                is_changed = self._record_outcome(trial, outcome.row, outcome.target_fault)
                await self._results.append(outcome.row, supersedes=trial.previous is not None)
                self._progress_state.add_row(outcome.row, trial.previous)
                self._count_calls_left(trial, outcome.row, policy)
            if outcome.budget_spent:
                self._budget_spent.set()
        finally:
            self._progress_state.trial_ended(trial.column)
            gate.leave(is_changed=is_changed)
            slots.release()

    def _count_calls_left(self, trial: Trial, row: Row, policy: RerunPolicy) -> None:
        """Replace what the trial needed by what the same command would need for its row."""
        case, target, fingerprints = trial.case, trial.target, self._context.fingerprints
        before = Action.ASK if trial.kept is None else Action.GRADE
        after = Action.KEEP
        if row.status is not RowStatus.GRADED:
            after = decide(row, case, target, fingerprints, policy).action
        calls_left = self._progress_state.calls_left
        needed = needed_calls(before, trial.kept, case, target, fingerprints)
        calls_left.add(trial.column, needed, times=-1)
        self._progress_state.calls_open.add(trial.column, needed, times=-1)
        calls_left.add(trial.column, needed_calls(after, row, case, target, fingerprints))

    def _record_outcome(self, trial: Trial, row: Row, fault: Fault | None) -> bool:
        """Count how the trial ended; return whether another configuration than the planned one answered."""
        error = row.error
        changed = error.error if error is not None and error.code == TARGET_CHANGED else None
        self._error_limit.record(trial.target, fault, changed=changed)
        if trial.target in self._error_limit.parked_targets:
            for prompt in self._prompts:
                self._progress_state.target_gauges[column_name(trial.target, prompt.name)].is_parked = True
        return changed is not None


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
