"""What a grader is, and what it may stand on: each kind of grader is such a class in a module of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quintain.client.client import Client
from quintain.contracts.invoke import Result, TokenUsage
from quintain.contracts.metadata import Info
from quintain.errors import QuintainError
from quintain_runner.doors import Doors
from quintain_runner.grader_specs import JudgeGrader, ProgramGrader
from quintain_runner.plan import Trial
from quintain_runner.prices import Price
from quintain_runner.rows import GRADER_FAILED, GraderRow

#: Asks for a session's counters with that session's own token.
CountCalls = Callable[[str], Awaitable[Info]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What grading needs beside the case: the run's session, its doors, and the graders.

    ``max_calls`` is the run's: no grader may have more. ``places`` bounds the processes at once. ``heard`` is told of
    each error after which a target, by its name, is asked again. ``prices`` are those that are known, by target.
    """

    run: str
    session: Client
    count_calls: CountCalls
    doors: Doors
    graders: tuple[Grader, ...]
    judge_targets: Mapping[str, str | None]
    max_calls: int
    places: asyncio.Semaphore
    heard: Callable[[str, QuintainError], None]
    prices: Mapping[str, Price] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Graded:
    """A grader's row, the tokens it spent, and the code of its error, if it has one."""

    row: GraderRow
    token_usage: TokenUsage
    code: str = GRADER_FAILED


class Grader(Protocol):
    """One grader of an evaluation, ready to grade."""

    @property
    def name(self) -> str:
        """What it is called in the results."""

    async def grade(self, trial: Trial, result: Result, bench: Bench) -> Graded:
        """Look at an answer. Its failure is in the row; a `Fault` is its session's."""


def judge_of(grader: ProgramGrader | JudgeGrader, target: str, judge_targets: Mapping[str, str | None]) -> str:
    """A grader's default target: its own, else the one that judges this target, else the target itself."""
    return grader.judge_target or judge_targets.get(target) or target
