"""``quintain run``, from the files to the last row: check everything, take up what is kept, drive, park or finish."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

from quintain.contracts.metadata import Info, TargetSpend
from quintain.errors import BusError, Fault
from quintain_runner.analysis import Analysis, analyse
from quintain_runner.board import Board
from quintain_runner.columns import columns_of
from quintain_runner.cost import cost_of
from quintain_runner.dataset import DatasetFacts, read_cases
from quintain_runner.dataset_command import open_dataset
from quintain_runner.doors import Doors, past_proxies, scrubbed
from quintain_runner.drive import Drive
from quintain_runner.evaluation import Evaluation
from quintain_runner.grader_specs import CommandGrader, FunctionGrader, JudgeGrader
from quintain_runner.grading import Bench, CountCalls, Grader, Session, judge_of
from quintain_runner.kept import Kept
from quintain_runner.plan import Again, check_known, most_per_trial
from quintain_runner.prices import Price
from quintain_runner.progress import TICK_SECONDS, Progress
from quintain_runner.ready_graders import prepared_graders
from quintain_runner.record import Findings, Origin, begin_record, identity_of, write_record
from quintain_runner.results import open_results, rows_that_count
from quintain_runner.summary import RunSummary, summarize

#: How many trials of a target are under way at once where nobody says.
DEFAULT_CONCURRENCY = 64

#: How many grader processes run at once where nobody says.
DEFAULT_GRADERS_AT_ONCE = 8

#: How often the ledger is asked how far the budget has come, in seconds.
BUDGET_SECONDS = 2.0

#: Each so many times it is asked for the cost as well: that is a sum over every call.
COST_EVERY = 10

#: Asks what the run's session spent on which target; None where nobody can say.
CountSpending = Callable[[], Awaitable[Mapping[str, TargetSpend] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Everything a run stands on.

    ``client`` is the run's own session, ``spent_before`` what sessions of before it were charged in its name,
    ``count_calls`` asks for a child's counters with the child's token, ``judge_targets`` is the configuration's
    ``judge_target`` by target, ``hidden`` the variables the configuration names, ``env`` the runner's environment, of
    which graders get what is not hidden. ``facts`` are the dataset's, where it was checked already. ``origin`` is what
    the record says of the session, ``prices`` what is known of them by target, and ``count_spending`` asks what went to
    which target; without it nobody knows the cost. ``peek_spending`` asks the same while calls are under way.
    ``raise_budget`` raises the session's limit, where nobody named a budget.
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
    facts: DatasetFacts | None = None
    spent_before: int = 0
    origin: Origin = field(default_factory=Origin)
    prices: Mapping[str, Price] = field(default_factory=dict)
    count_spending: CountSpending | None = None
    peek_spending: CountSpending | None = None
    raise_budget: Callable[[int], Awaitable[None]] | None = None
    again: Again = field(default_factory=Again)
    concurrency: int = DEFAULT_CONCURRENCY
    graders_at_once: int = DEFAULT_GRADERS_AT_ONCE


async def run_evaluation(setup: RunSetup) -> RunSummary:
    """Run an evaluation, or take it up where it stopped.

    Raises `ConfigError` before the first call where something a person wrote cannot be used, and what the bus
    raises where the fleet is gone. Whatever ends it, an interrupt too: the rows written are complete, and kept.
    """
    evaluation, spec = setup.evaluation, setup.evaluation.spec
    facts = setup.facts
    if facts is None:
        facts = await asyncio.to_thread(open_dataset, evaluation, setup.output, setup.env)
    info = await setup.client.get_info()
    check_known(_named_targets(setup), info.available_targets)
    async with prepared_graders(evaluation, _grader_env(setup)) as graders, open_results(setup.output) as results:
        identity = identity_of(evaluation, facts.sha256)
        record = await asyncio.to_thread(begin_record, setup.output, evaluation, setup.targets, identity, setup.origin)
        board = Board(setup.targets, cases=facts.cases, repeats=spec.repeats, kept=results.kept, again=setup.again)
        await _allow(setup, info, board)
        _tell(board, info, setup.spent_before)

        def summary(*, parked: bool = False) -> RunSummary:
            return summarize(
                board,
                threshold=spec.threshold,
                parked=parked,
                results=results.path,
                most_per_trial=most_per_trial(evaluation),
            )

        await asyncio.to_thread(write_record, setup.output, record, summary(), ended=False)
        async with _shown(setup, board):
            drive = Drive(_bench(setup, info, board, graders), results, board, concurrency=setup.concurrency)
            parked = await drive.run(lambda: closing(read_cases(facts.source)), repeats=spec.repeats, again=setup.again)
        results.kept.let_go()
        _tell(board, await setup.client.get_info(), setup.spent_before)
        ending = summary(parked=parked)
        findings = await _findings(setup)
        await asyncio.to_thread(write_record, setup.output, record, ending, ended=True, findings=findings)
    return ending


async def _findings(setup: RunSetup) -> Findings:
    def analysed() -> Analysis:
        # Of a superseded row the columns know themselves.
        rows = rows_that_count(setup.output, Kept())
        return analyse(columns_of(rows, setup.targets, repeats=setup.evaluation.spec.repeats))

    analysis = await asyncio.to_thread(analysed)
    spent = None if setup.count_spending is None else await setup.count_spending()
    cost = None if spent is None else cost_of(spent, setup.prices, whole=not setup.spent_before)
    return Findings(analysis=analysis, cost=cost)


def _grader_env(setup: RunSetup) -> dict[str, str]:
    return past_proxies(scrubbed(setup.env, setup.hidden), setup.doors)


def _bench(setup: RunSetup, info: Info, board: Board, graders: tuple[Grader, ...]) -> Bench:
    return Bench(
        run=setup.evaluation.name,
        session=setup.client,
        count_calls=setup.count_calls,
        doors=setup.doors,
        graders=graders,
        judge_targets=setup.judge_targets,
        max_calls=info.max_calls,
        places=asyncio.Semaphore(setup.graders_at_once),
        heard=lambda target, error: board.gauges[target].heard(error),
        prices=setup.prices,
    )


def _named_targets(setup: RunSetup) -> Iterator[tuple[str, str]]:
    path = setup.evaluation.path
    for target in setup.targets:
        yield f"{path}: targets", target
    for index, grader in enumerate(setup.evaluation.spec.graders):
        if isinstance(grader, CommandGrader | FunctionGrader | JudgeGrader):
            for target in setup.targets:
                yield f"{path}: graders[{index}].judge_target", judge_of(grader, target, setup.judge_targets)


async def _allow(setup: RunSetup, info: Info, board: Board) -> None:
    """Where nobody named a budget, it is what is left to ask may take, whatever tries of before were charged."""
    wanted = info.call_count + board.asked * most_per_trial(setup.evaluation)
    if setup.raise_budget is not None and wanted > info.max_calls:
        await setup.raise_budget(wanted)


def _tell(board: Board, info: Info, spent_before: int) -> None:
    board.budget.told(info.call_count + spent_before, info.max_calls + spent_before)


async def _tell_cost(setup: RunSetup, board: Board) -> None:
    spent = await setup.peek_spending() if setup.peek_spending is not None and setup.prices else None
    if spent is not None:
        board.cost = cost_of(spent, setup.prices, whole=not setup.spent_before)


@asynccontextmanager
async def _shown(setup: RunSetup, board: Board) -> AsyncIterator[None]:
    async def ticking() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            setup.progress.tick()

    async def asking() -> None:
        for times in itertools.count(1):
            await asyncio.sleep(BUDGET_SECONDS)
            try:
                _tell(board, await setup.client.get_info(), setup.spent_before)
                if times % COST_EVERY == 1:
                    await _tell_cost(setup, board)
            except (Fault, BusError):
                # Only shown: the next one may be answered.
                continue

    setup.progress.start(board)
    clocks = [asyncio.create_task(ticking()), asyncio.create_task(asking())]
    try:
        yield
    finally:
        for clock in clocks:
            clock.cancel()
        # Waited for, not awaited: their cancel is not this task's.
        await asyncio.wait(clocks)
        setup.progress.stop()
