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
from quintain_runner.spec.environment import GraderEnvironment
from quintain_runner.spec.graders import JudgeGrader, ProgramGrader
from quintain_runner.spec.plan import Trial

#: Asks for a session's counters with that session's own token.
ReadSessionInfo = Callable[[str], Awaitable[Info]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingContext:
    """What grading needs beside the case: the run's session, its doors, and the graders.

    ``max_calls`` is the run's: no grader may have more. ``process_slots`` bounds the processes at once. ``on_retry``
    is told of each error after which a target, by its name, is asked again. ``prices`` are those that are known, by
    target.
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


@dataclass(frozen=True, slots=True)
class GradingResult:
    """A grader's row, the tokens it spent, and the code of its error, if it has one."""

    row: GraderRow
    token_usage: TokenUsage
    error_code: str = GRADER_FAILED


class GraderRunner(Protocol):
    """One grader of an evaluation, ready to grade."""

    @property
    def name(self) -> str:
        """What it is called in the results."""

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Look at an answer. Its failure is in the row; a `Fault` is its session's."""


def judge_target_of(grader: ProgramGrader | JudgeGrader, target: str, judge_targets: Mapping[str, str | None]) -> str:
    """A grader's default target: its own, else the one that judges this target, else the target itself."""
    return grader.judge_target or judge_targets.get(target) or target
