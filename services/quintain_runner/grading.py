"""One grader on one answer: a verdict or the error that took its place, and what it spent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quintain.contracts.invoke import InvokeRequest, Result, TokenUsage
from quintain.contracts.metadata import Info, OpenSession, SessionOpened
from quintain_runner.builtin import grade_builtin
from quintain_runner.doors import Doors
from quintain_runner.evaluation import GraderSpec
from quintain_runner.grader_input import grader_input
from quintain_runner.grader_process import GraderCommand, run_grader
from quintain_runner.plan import Trial
from quintain_runner.rows import GraderRow
from quintain_runner.verdict import GraderError, read_verdict

#: A grader's session outlives its timeout by this much, so that its last call still counts, in seconds.
SESSION_GRACE_SECONDS = 60.0

#: The most characters a session's label has.
_LABEL_LENGTH = 200

#: Asks for a session's counters with that session's own token.
CountCalls = Callable[[str], Awaitable[Info]]


class Session(Protocol):
    """What the runner asks of its session; `quintain.client.client.Client` is one."""

    async def send(self, request: InvokeRequest, *, request_id: str | None = None) -> Result:
        """Ask a target; the same ``request_id`` is the same call. Raises a `Fault`."""

    async def open_child(self, ask: OpenSession) -> SessionOpened:
        """Open a session that draws on this one. Raises a `Fault`."""

    async def get_info(self) -> Info:
        """This session's counters. Raises a `Fault`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What grading needs beside the case: the run's session, its doors, and where graders run.

    ``max_calls`` is the run's: no grader may have more. ``places`` bounds the processes at once.
    """

    run: str
    session: Session
    count_calls: CountCalls
    doors: Doors
    folder: Path
    env: Mapping[str, str]
    graders: tuple[GraderSpec, ...]
    judge_targets: Mapping[str, str | None]
    max_calls: int
    places: asyncio.Semaphore


@dataclass(frozen=True, slots=True)
class Graded:
    """A grader's row, and the tokens it spent."""

    row: GraderRow
    token_usage: TokenUsage


def judge_of(grader: GraderSpec, target: str, judge_targets: Mapping[str, str | None]) -> str:
    """A grader's default target: its own, else the one that judges this target, else the target itself."""
    return grader.judge_target or judge_targets.get(target) or target


async def grade(grader: GraderSpec, trial: Trial, result: Result, bench: Bench) -> Graded:
    """Let a grader look at an answer. Its failure is in the row; a `Fault` is its session's."""
    if grader.command is not None:
        return await _grade_by_command(grader, trial, result, bench)
    try:
        row = GraderRow.of(grade_builtin(grader.builtin or "", trial.case, result.raw_text))
    except GraderError as error:
        row = GraderRow(error=error.message)
    return Graded(row, TokenUsage())


async def _grade_by_command(grader: GraderSpec, trial: Trial, result: Result, bench: Bench) -> Graded:
    async with bench.places:
        opened = await bench.session.open_child(_narrowed(grader, trial, bench))
        command = GraderCommand(
            argv=tuple(grader.command or ()),
            folder=bench.folder,
            env={**bench.env, **bench.doors.variables(opened.token)},
            timeout_seconds=grader.timeout_seconds,
        )
        try:
            stdout = await run_grader(command, json.dumps(grader_input(trial.case, result)).encode())
            row = GraderRow.of(read_verdict(stdout))
        except GraderError as error:
            row = GraderRow(error=error.message)
    # A counter that cannot be read is an error, never zero: this may raise.
    spent = await bench.count_calls(opened.token)
    return Graded(row.model_copy(update={"calls": spent.call_count}), spent.token_usage)


def _narrowed(grader: GraderSpec, trial: Trial, bench: Bench) -> OpenSession:
    return OpenSession(
        default_target=judge_of(grader, trial.target, bench.judge_targets),
        max_calls=min(grader.target.max_calls, bench.max_calls),
        expires_in_seconds=grader.timeout_seconds + SESSION_GRACE_SECONDS,
        label=f"{bench.run}/{trial.case.id}/{grader.name}"[:_LABEL_LENGTH],
    )
