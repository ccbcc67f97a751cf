"""The protocol that every grader implements, and the context that graders run in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quintain.client.client import Client
from quintain.contracts.invoke import Result, TokenUsage
from quintain.contracts.session import Info
from quintain.errors import QuintainError
from quintain_runner.cost.prices import Price
from quintain_runner.results.row import GRADER_FAILED, GraderRow
from quintain_runner.spec.changes import RunFingerprints
from quintain_runner.spec.environment import GraderEnvironment
from quintain_runner.spec.graders import JudgeGrader, ProgramGrader
from quintain_runner.spec.plan import Trial
from quintain_runner.spec.reckoning import Reckoning

#: Reads the counters of a session by that session's token.
ReadSessionInfo = Callable[[str], Awaitable[Info]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingContext:
    """What the graders of a run share.

    ``session`` is the client of the run's session, and ``read_session_info`` reads the counters of a grader's child
    session. ``judge_targets`` is the configured ``judge_target`` of each target. ``max_calls`` is the run's limit,
    which no grader's limit exceeds. ``process_slots`` bounds the number of grader processes that run at the same time.
    ``on_retry`` is called with the trial's column and the error before each retry of a call. ``prices`` are the known
    token prices by target. ``fingerprints`` are those of the run's targets and graders.
    ``reckoning`` makes rows of verdicts.
    """

    run_name: str
    session: Client
    read_session_info: ReadSessionInfo
    environment: GraderEnvironment
    graders: tuple[GraderRunner, ...]
    judge_targets: Mapping[str, str | None]
    max_calls: int
    process_slots: asyncio.Semaphore
    on_retry: Callable[[str, QuintainError], None]
    prices: Mapping[str, Price] = field(default_factory=dict)
    fingerprints: RunFingerprints = field(default_factory=RunFingerprints)
    reckoning: Reckoning = field(default_factory=Reckoning)


@dataclass(frozen=True, slots=True)
class GradingResult:
    """The result of one grader: its row, the tokens it used, and the code of its error if it failed."""

    row: GraderRow
    token_usage: TokenUsage
    error_code: str = GRADER_FAILED


class GraderRunner(Protocol):
    """A grader of an evaluation that is ready to grade answers."""

    @property
    def name(self) -> str:
        """The name of the grader in the results."""

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Grade one answer of a target.

        A failure of the grader is returned in the row. Raises a `Fault` if its session cannot be opened or read.
        """


def judge_target_of(grader: ProgramGrader | JudgeGrader, target: str, judge_targets: Mapping[str, str | None]) -> str:
    """The default target of a grader: its own ``judge_target``, else the one configured for ``target``, else
    ``target``.
    """
    return grader.judge_target or judge_targets.get(target) or target
