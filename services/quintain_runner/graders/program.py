"""Command and function graders. Each execution has its own child session with limits of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quintain.contracts.invoke import NO_TOKENS, Result
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.graders import GraderInput
from quintain.telemetry.spans import current_traceparent
from quintain.telemetry.trace_context import TRACEPARENT_VARIABLE
from quintain_runner.cost.prices import Price
from quintain_runner.graders.base import GradingContext, GradingResult, judge_target_of
from quintain_runner.graders.function_worker import FunctionRequest, SessionConnection
from quintain_runner.graders.input import AnswerMetadata, JsonObject, build_grader_input
from quintain_runner.graders.input_files import temporary_grader_files
from quintain_runner.graders.process import GraderCommand, run_grader
from quintain_runner.graders.process_pool import GraderProcessPool
from quintain_runner.graders.retry import call_with_retry
from quintain_runner.graders.verdict_parser import GraderError, parse_verdict
from quintain_runner.results.row import GraderRow
from quintain_runner.spec.graders import CommandGrader, ProgramGrader
from quintain_runner.spec.plan import Trial

#: A grader's session outlives its timeout by this much, so that its last call still counts, in seconds.
SESSION_GRACE_SECONDS = 60.0

#: The most characters a session's label has.
_LABEL_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderInvocation:
    """What one execution is given. ``session_variables`` are the variables of its session; empty where it needs none.
    ``price`` is that of the target's tokens, ``traceparent`` the trial's trace; None where nobody knows, or records
    one."""

    spec: ProgramGrader
    trial: Trial
    result: Result
    session_variables: Mapping[str, str]
    price: Price | None = None
    traceparent: str | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What its environment has beside what every grader inherits."""
        trace = {} if self.traceparent is None else {TRACEPARENT_VARIABLE: self.traceparent}
        return {**self.session_variables, **trace}

    @contextlib.contextmanager
    def input_fields(self) -> Iterator[JsonObject]:
        """What it reads under AgentV's contract; the files that it names are there until this is left.

        Raises `GraderError` where they cannot be.
        """
        with temporary_grader_files() as save_file:
            answer_metadata = AnswerMetadata(answered_at=self.trial.answered_at, price=self.price)
            yield {
                **build_grader_input(self.trial.case, self.result, answer_metadata, save_file),
                "config": self.spec.config,
            }


#: Runs a grader once; its reply is the verdict's JSON. Raises `GraderError`.
ExecuteGrader = Callable[[GraderInvocation], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramGraderRunner:
    """A program or a function, ready to be run."""

    spec: ProgramGrader
    execute: ExecuteGrader
    needs_session: bool = True

    @property
    def name(self) -> str:
        """What it is called in the results."""
        return self.spec.name

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Let it look at an answer."""
        async with context.process_slots:
            session = await self._open_session(trial, context) if self.needs_session else None
            session_variables = {} if session is None else context.environment.session_variables(session.token)
            try:
                price = context.prices.get(trial.target)
                invocation = GraderInvocation(
                    spec=self.spec,
                    trial=trial,
                    result=result,
                    session_variables=session_variables,
                    price=price,
                    traceparent=current_traceparent(),
                )
                reply = await self.execute(invocation)
                row = GraderRow.of(parse_verdict(reply))
            except GraderError as error:
                row = GraderRow(error=error.message)
        if session is None:
            return GradingResult(row, NO_TOKENS)
        token = session.token
        # A counter that cannot be read is an error, never zero: this may raise.
        session_info = await call_with_retry(lambda: context.read_session_info(token))
        return GradingResult(row.model_copy(update={"calls": session_info.call_count}), session_info.token_usage)

    async def _open_session(self, trial: Trial, context: GradingContext) -> SessionOpened:
        request = OpenSession(
            default_target=judge_target_of(self.spec, trial.target, context.judge_targets),
            max_calls=min(self.spec.target.max_calls, context.max_calls),
            expires_in_seconds=self.spec.timeout_seconds + SESSION_GRACE_SECONDS,
            label=f"{context.run_name}/{trial.case.id}/{self.name}"[:_LABEL_LENGTH],
        )
        # Asked twice it may be opened twice: the one that nobody uses spends nothing.
        return await call_with_retry(lambda: context.session.open_child(request))


def process_executor(spec: CommandGrader, folder: Path, env: Mapping[str, str]) -> ExecuteGrader:
    """A program that is started for every case."""

    async def execute(invocation: GraderInvocation) -> bytes:
        command = grader_command(spec, folder, {**env, **invocation.variables})
        with invocation.input_fields() as fields:
            return await run_grader(command, json.dumps(fields).encode())

    return execute


def line_executor(pool: GraderProcessPool) -> ExecuteGrader:
    """A program that is kept warm: what it would find in its environment is in each line, as ``env``."""

    async def execute(invocation: GraderInvocation) -> bytes:
        with invocation.input_fields() as fields:
            return await pool.request(json.dumps({**fields, "env": invocation.variables}).encode())

    return execute


def function_executor(pool: GraderProcessPool) -> ExecuteGrader:
    """A function in a `quintain_runner.function_host`."""

    async def execute(invocation: GraderInvocation) -> bytes:
        result, session_variables = invocation.result, invocation.session_variables
        grader_input = GraderInput(
            case=invocation.trial.case,
            output=result.raw_text,
            target=invocation.trial.target,
            repeat=invocation.trial.repeat,
            messages=result.output,
            token_usage=result.token_usage,
            duration_ms=result.duration_ms,
            config=invocation.spec.config or {},
        )
        connection = (
            SessionConnection(
                url=session_variables["QUINTAIN_GATEWAY_URL"], token=session_variables["QUINTAIN_SESSION_TOKEN"]
            )
            if session_variables
            else None
        )
        request = FunctionRequest(given=grader_input, session=connection, traceparent=invocation.traceparent)
        return await pool.request(request.model_dump_json().encode())

    return execute


def grader_command(spec: CommandGrader, folder: Path, env: Mapping[str, str]) -> GraderCommand:
    """What is started, and where: in ``cwd`` from the evaluation file's folder."""
    return GraderCommand(
        argv=tuple(spec.command), folder=folder / (spec.cwd or "."), env=env, timeout_seconds=spec.timeout_seconds
    )
