"""Keeping a run's trials in flight: a lane per target, each row on the disk before its place is given on.

A lane reads the dataset for itself: a target that is slow, or throttled, holds up no other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import islice

from quintain.graders import Case
from quintain_runner.board import Board
from quintain_runner.grading import Bench
from quintain_runner.plan import Again, Trial, trials
from quintain_runner.results import ResultFile
from quintain_runner.trial import run_trial

#: How many trials a lane looks ahead: they are read in a thread, so that passing over a million kept ones, or a slow
#: disk, holds up nothing.
_LOOK_AHEAD = 128

#: Opens the dataset, as often as it is asked.
ReadCases = Callable[[], AbstractContextManager[Iterable[Case]]]


class Drive:
    """One run's trials. ``concurrency`` is how many are under way at once, per target."""

    def __init__(self, bench: Bench, results: ResultFile, board: Board, *, concurrency: int) -> None:
        self._bench, self._results, self._board = bench, results, board
        self._concurrency = concurrency
        self._spent = asyncio.Event()

    async def run(self, read: ReadCases, *, repeats: int, again: Again) -> bool:
        """Run every trial that has no kept row; True where the budget was spent before the end.

        Raises the first error that is no `Fault`; the other trials are cancelled then.
        """
        try:
            async with asyncio.TaskGroup() as lanes:
                for target in self._board.tallies:
                    lanes.create_task(self._lane(read, target, repeats, again))
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        return self._spent.is_set()

    async def _lane(self, read: ReadCases, target: str, repeats: int, again: Again) -> None:
        places = asyncio.Semaphore(self._concurrency)
        with read() as cases:
            pending = trials(cases, target, repeats=repeats, kept=self._results.kept, again=again)
            async with asyncio.TaskGroup() as running:
                while ahead := await _next_ones(pending):
                    for trial in ahead:
                        await places.acquire()
                        if self._spent.is_set():
                            return
                        running.create_task(self._run_one(trial, places))

    async def _run_one(self, trial: Trial, places: asyncio.Semaphore) -> None:
        self._board.begin(trial.target)
        try:
            outcome = await run_trial(trial, self._bench)
            if outcome.row is not None:
                await self._results.append(outcome.row, supersedes=trial.before is not None)
                self._board.add(outcome.row, trial.before)
            if outcome.budget_spent:
                self._spent.set()
        finally:
            self._board.end(trial.target)
            places.release()


async def _next_ones(pending: Iterable[Trial]) -> list[Trial]:
    reading = asyncio.ensure_future(asyncio.to_thread(lambda: list(islice(pending, _LOOK_AHEAD))))
    try:
        return await asyncio.shield(reading)
    finally:
        # A thread cannot be stopped, and what it reads from must not be closed beneath it.
        await asyncio.wait([reading])


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure is the reason; the others are its echo in the trials that ran beside it."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
