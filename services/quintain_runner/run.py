"""``quintain run``, the drive: stream the dataset, keep the trials in flight, write each row, park or finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from quintain.contracts.metadata import Info
from quintain_runner.dataset import check_dataset, read_cases
from quintain_runner.doors import Doors, past_proxies, scrubbed
from quintain_runner.evaluation import Evaluation
from quintain_runner.grading import Bench, CountCalls, Session, judge_of
from quintain_runner.plan import Trial, check_known, trials
from quintain_runner.progress import TICK_SECONDS, Progress
from quintain_runner.record import begin_record, identity_of, write_record
from quintain_runner.results import ResultFile, open_results
from quintain_runner.summary import RunSummary, summarize
from quintain_runner.tally import Board
from quintain_runner.trial import run_trial

#: How many trials are under way at once where nobody says.
DEFAULT_CONCURRENCY = 64

#: How many grader processes run at once where nobody says.
DEFAULT_GRADERS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Everything a run stands on.

    ``client`` is the run's own session, ``count_calls`` asks for a child's counters with the child's token,
    ``judge_targets`` is the configuration's ``judge_target`` by target, ``hidden`` the variables the
    configuration names, ``env`` the runner's environment, of which graders get what is not hidden.
    """

    evaluation: Evaluation
    targets: tuple[str, ...]
    output: Path
    client: Session
    count_calls: CountCalls
    doors: Doors
    judge_targets: Mapping[str, str | None]
    hidden: frozenset[str]
    env: Mapping[str, str]
    progress: Progress
    concurrency: int = DEFAULT_CONCURRENCY
    graders_at_once: int = DEFAULT_GRADERS_AT_ONCE


async def run_evaluation(setup: RunSetup) -> RunSummary:
    """Run an evaluation, or take it up where it stopped.

    Raises `ConfigError` before the first call where something a person wrote cannot be used, and what the bus
    raises where the fleet is gone. Whatever ends it, an interrupt too: the rows written are complete, and kept.
    """
    evaluation, spec = setup.evaluation, setup.evaluation.spec
    facts = await asyncio.to_thread(check_dataset, evaluation.dataset)
    info = await setup.client.get_info()
    check_known(_named_targets(setup), info.available_targets)
    async with open_results(setup.output) as results:
        identity = identity_of(evaluation, facts.sha256)
        record = begin_record(setup.output, evaluation, setup.targets, identity)
        board = Board(setup.targets, cases=facts.cases, repeats=spec.repeats, kept=results.kept())

        def summary(info: Info, *, parked: bool = False) -> RunSummary:
            return summarize(board, info, threshold=spec.threshold, parked=parked, results=results.path)

        await asyncio.to_thread(write_record, setup.output, record, summary(info), ended=False)
        async with _shown(setup.progress, board):
            parked = await _drive(setup, _bench(setup, info), results, board)
        ending = summary(await setup.client.get_info(), parked=parked)
        await asyncio.to_thread(write_record, setup.output, record, ending, ended=True)
    return ending


async def _drive(setup: RunSetup, bench: Bench, results: ResultFile, board: Board) -> bool:
    """Run every trial that has no kept row; True where the budget was spent before the end."""
    places, spent = asyncio.Semaphore(setup.concurrency), asyncio.Event()

    async def run_one(trial: Trial) -> None:
        try:
            outcome = await run_trial(trial, bench)
            if outcome.row is not None:
                await results.append(outcome.row)
                board.add(outcome.row)
            if outcome.budget_spent:
                spent.set()
        finally:
            places.release()

    try:
        async with asyncio.TaskGroup() as running:
            with closing(_pending(setup, results)) as pending:
                for trial in pending:
                    await places.acquire()
                    if spent.is_set():
                        break
                    running.create_task(run_one(trial))
    except BaseExceptionGroup as failures:
        # The first failure is the reason; the others are its echo in the trials that ran beside it.
        raise failures.exceptions[0] from None
    return spent.is_set()


def _pending(setup: RunSetup, results: ResultFile) -> Generator[Trial, None, None]:
    spec = setup.evaluation.spec
    with closing(read_cases(setup.evaluation.dataset)) as cases:
        yield from trials(cases, setup.targets, repeats=spec.repeats, kept=results.kept())


def _bench(setup: RunSetup, info: Info) -> Bench:
    return Bench(
        run=setup.evaluation.name,
        session=setup.client,
        count_calls=setup.count_calls,
        doors=setup.doors,
        folder=setup.evaluation.folder,
        env=past_proxies(scrubbed(setup.env, setup.hidden), setup.doors),
        graders=tuple(setup.evaluation.spec.graders),
        judge_targets=setup.judge_targets,
        max_calls=info.max_calls,
        places=asyncio.Semaphore(setup.graders_at_once),
    )


def _named_targets(setup: RunSetup) -> Iterator[tuple[str, str]]:
    path = setup.evaluation.path
    for target in setup.targets:
        yield f"{path}: targets", target
    for index, grader in enumerate(setup.evaluation.spec.graders):
        if grader.command is not None:
            for target in setup.targets:
                yield f"{path}: graders[{index}].judge_target", judge_of(grader, target, setup.judge_targets)


@asynccontextmanager
async def _shown(progress: Progress, board: Board) -> AsyncIterator[None]:
    async def ticking() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            progress.tick()

    progress.start(board)
    clock = asyncio.create_task(ticking())
    try:
        yield
    finally:
        clock.cancel()
        # Waited for, not awaited: its cancel is not this task's.
        await asyncio.wait([clock])
        progress.stop()
