"""Programs and functions as graders: each execution has a session of its own, which may only narrow."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quintain.contracts.invoke import NO_TOKENS, Result
from quintain.contracts.metadata import OpenSession, SessionOpened
from quintain.graders import GraderInput
from quintain.telemetry.context import TRACEPARENT_VARIABLE
from quintain.telemetry.spans import traceparent
from quintain_runner.function_host import Door, Question
from quintain_runner.grader_files import grader_files
from quintain_runner.grader_input import Beside, grader_input
from quintain_runner.grader_process import GraderCommand, run_grader
from quintain_runner.grader_specs import CommandGrader, ProgramGrader
from quintain_runner.grader_trace import JsonObject
from quintain_runner.grading import Bench, Graded, judge_of
from quintain_runner.patience import patiently
from quintain_runner.plan import Trial
from quintain_runner.prices import Price
from quintain_runner.rows import GraderRow
from quintain_runner.verdict import GraderError, read_verdict
from quintain_runner.warm_pool import WarmPool

#: A grader's session outlives its timeout by this much, so that its last call still counts, in seconds.
SESSION_GRACE_SECONDS = 60.0

#: The most characters a session's label has.
_LABEL_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one execution is given. ``doors`` are the variables of its session; empty where it needs none. ``price`` is
    that of the target's tokens, ``traceparent`` the trial's trace; None where nobody knows, or records one."""

    spec: ProgramGrader
    trial: Trial
    result: Result
    doors: Mapping[str, str]
    price: Price | None = None
    traceparent: str | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What its environment has beside what every grader inherits."""
        trace = {} if self.traceparent is None else {TRACEPARENT_VARIABLE: self.traceparent}
        return {**self.doors, **trace}

    @contextlib.contextmanager
    def fields(self) -> Iterator[JsonObject]:
        """What it reads under AgentV's contract; the files that it names are there until this is left.

        Raises `GraderError` where they cannot be.
        """
        with grader_files() as keep:
            beside = Beside(answered_at=self.trial.answered_at, price=self.price)
            yield {**grader_input(self.trial.case, self.result, beside, keep), "config": self.spec.config}


#: Runs a grader once; its reply is the verdict's JSON. Raises `GraderError`.
Execute = Callable[[Look], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Executing:
    """A program or a function, ready to be run."""

    spec: ProgramGrader
    execute: Execute
    needs_session: bool = True

    @property
    def name(self) -> str:
        """What it is called in the results."""
        return self.spec.name

    async def grade(self, trial: Trial, result: Result, bench: Bench) -> Graded:
        """Let it look at an answer."""
        async with bench.places:
            opened = await self._open(trial, bench) if self.needs_session else None
            doors = {} if opened is None else bench.doors.variables(opened.token)
            try:
                price = bench.prices.get(trial.target)
                look = Look(
                    spec=self.spec, trial=trial, result=result, doors=doors, price=price, traceparent=traceparent()
                )
                reply = await self.execute(look)
                row = GraderRow.of(read_verdict(reply))
            except GraderError as error:
                row = GraderRow(error=error.message)
        if opened is None:
            return Graded(row, NO_TOKENS)
        token = opened.token
        # A counter that cannot be read is an error, never zero: this may raise.
        spent = await patiently(lambda: bench.count_calls(token))
        return Graded(row.model_copy(update={"calls": spent.call_count}), spent.token_usage)

    async def _open(self, trial: Trial, bench: Bench) -> SessionOpened:
        ask = OpenSession(
            default_target=judge_of(self.spec, trial.target, bench.judge_targets),
            max_calls=min(self.spec.target.max_calls, bench.max_calls),
            expires_in_seconds=self.spec.timeout_seconds + SESSION_GRACE_SECONDS,
            label=f"{bench.run}/{trial.case.id}/{self.name}"[:_LABEL_LENGTH],
        )
        # Asked twice it may be opened twice: the one that nobody uses spends nothing.
        return await patiently(lambda: bench.session.open_child(ask))


def by_process(spec: CommandGrader, folder: Path, env: Mapping[str, str]) -> Execute:
    """A program that is started for every case."""

    async def execute(look: Look) -> bytes:
        command = program_of(spec, folder, {**env, **look.variables})
        with look.fields() as fields:
            return await run_grader(command, json.dumps(fields).encode())

    return execute


def by_lines(pool: WarmPool) -> Execute:
    """A program that is kept warm: what it would find in its environment is in each line, as ``env``."""

    async def execute(look: Look) -> bytes:
        with look.fields() as fields:
            return await pool.ask(json.dumps({**fields, "env": look.variables}).encode())

    return execute


def by_function(pool: WarmPool) -> Execute:
    """A function in a `quintain_runner.function_host`."""

    async def execute(look: Look) -> bytes:
        result, doors = look.result, look.doors
        given = GraderInput(
            case=look.trial.case,
            output=result.raw_text,
            target=look.trial.target,
            repeat=look.trial.repeat,
            messages=result.output,
            token_usage=result.token_usage,
            duration_ms=result.duration_ms,
            config=look.spec.config or {},
        )
        door = Door(url=doors["QUINTAIN_GATEWAY_URL"], token=doors["QUINTAIN_SESSION_TOKEN"]) if doors else None
        question = Question(given=given, session=door, traceparent=look.traceparent)
        return await pool.ask(question.model_dump_json().encode())

    return execute


def program_of(spec: CommandGrader, folder: Path, env: Mapping[str, str]) -> GraderCommand:
    """What is started, and where: in ``cwd`` from the evaluation file's folder."""
    return GraderCommand(
        argv=tuple(spec.command), folder=folder / (spec.cwd or "."), env=env, timeout_seconds=spec.timeout_seconds
    )
