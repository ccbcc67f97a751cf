"""Schedules the trials of a run: at most `concurrency` trials of each target run at once.

Each target reads the dataset separately, so a slow or throttled target does not delay the others. A trial's slot is
released only after its row is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import islice

from quintain.graders import Case
from quintain_runner.engine.trial import run_trial
from quintain_runner.graders.base import GradingContext
from quintain_runner.progress.state import ProgressState
from quintain_runner.results.store import ResultFile
from quintain_runner.spec.plan import RerunPolicy, Trial, pending_trials

#: How many trials a lane looks ahead: they are read in a thread, so that passing over a million kept ones, or a slow
#: disk, holds up nothing.
_PREFETCHED_TRIALS = 128

#: Opens the dataset, as often as it is asked.
OpenCases = Callable[[], AbstractContextManager[Iterable[Case]]]


class TrialScheduler:
    """One run's trials. ``concurrency`` is how many are under way at once, per target."""

    def __init__(
        self, context: GradingContext, results: ResultFile, progress_state: ProgressState, *, concurrency: int
    ) -> None:
        self._context, self._results, self._progress_state = context, results, progress_state
        self._concurrency = concurrency
        self._budget_spent = asyncio.Event()

    async def run(self, open_cases: OpenCases, *, repeats: int, rerun_policy: RerunPolicy) -> bool:
        """Run every trial that has no kept row; True where the budget was spent before the end.

        Raises the first error that is no `Fault`; the other trials are cancelled then.
        """
        try:
            async with asyncio.TaskGroup() as task_group:
                for target in self._progress_state.tallies:
                    task_group.create_task(self._run_target(open_cases, target, repeats, rerun_policy))
        except BaseExceptionGroup as failures:
            raise _root_failure(failures) from None
        return self._budget_spent.is_set()

    async def _run_target(self, open_cases: OpenCases, target: str, repeats: int, rerun_policy: RerunPolicy) -> None:
        slots = asyncio.Semaphore(self._concurrency)
        with open_cases() as cases:
            pending = pending_trials(
                cases, target, repeats=repeats, resume_state=self._results.resume_state, rerun_policy=rerun_policy
            )
            async with asyncio.TaskGroup() as task_group:
                while prefetched := await _prefetch(pending):
                    for trial in prefetched:
                        await slots.acquire()
                        if self._budget_spent.is_set():
                            return
                        task_group.create_task(self._run_trial(trial, slots))

    async def _run_trial(self, trial: Trial, slots: asyncio.Semaphore) -> None:
        self._progress_state.trial_started(trial.target)
        try:
            outcome = await run_trial(trial, self._context)
            if outcome.row is not None:
                await self._results.append(outcome.row, supersedes=trial.previous is not None)
                self._progress_state.add_row(outcome.row, trial.previous)
            if outcome.budget_spent:
                self._budget_spent.set()
        finally:
            self._progress_state.trial_ended(trial.target)
            slots.release()


async def _prefetch(pending: Iterable[Trial]) -> list[Trial]:
    reading = asyncio.ensure_future(asyncio.to_thread(lambda: list(islice(pending, _PREFETCHED_TRIALS))))
    try:
        return await asyncio.shield(reading)
    finally:
        # A thread cannot be stopped, and what it reads from must not be closed beneath it.
        await asyncio.wait([reading])


def _root_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure is the reason; the others are its echo in the trials that ran beside it."""
    first = failures.exceptions[0]
    return _root_failure(first) if isinstance(first, BaseExceptionGroup) else first
