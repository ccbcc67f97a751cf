"""Command and function graders and their variables. Each execution has its own child session with limits of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quintain.config.prices import Price
from quintain.contracts.invoke import NO_TOKENS, Result, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.errors import Fault
from quintain.graders import GraderInput
from quintain.observe.spans import TRACEPARENT_VARIABLE, current_traceparent
from quintain.programs.agent_urls import session_variables
from quintain.programs.program import Program, script_path, withheld_variables
from quintain_runner.graders.base import (
    SESSION_LEAD_SECONDS,
    GradingContext,
    GradingResult,
    PlannedCalls,
    ReservedSession,
    call_with_retry,
)
from quintain_runner.graders.function_worker import FunctionRequest, SessionConnection
from quintain_runner.graders.input import JsonObject, build_grader_input, temporary_grader_files
from quintain_runner.graders.subprocesses import GraderCommand, GraderProcessPool, run_grader
from quintain_runner.graders.verdict import GraderError, parse_verdict
from quintain_runner.plan.address import ASKINGS_OF_A_GENERATION, AnswerMissing, NumberedVerdict
from quintain_runner.plan.trials import Trial
from quintain_runner.results.agent_steps import steps_of
from quintain_runner.results.row import GRADER_FAILED, GraderRow
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import CommandGrader, FunctionGrader, ProgramGrader, judge_target_of

#: How much longer a grader's session lives than its timeout, in seconds, so that its last call is still counted.
SESSION_GRACE_SECONDS = 60.0

#: The most characters of a session's label.
_LABEL_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderInvocation:
    """The data of one execution of a grader.

    ``session_variables`` are the environment variables of its session, empty if it has none. ``price`` is the token
    price of the target, or None if it is unknown. ``traceparent`` is the trace context of the trial, or None if tracing
    is off.
    """

    spec: ProgramGrader
    trial: Trial
    result: Result
    session_variables: Mapping[str, str]
    price: Price | None = None
    traceparent: str | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of this execution, in addition to those that every grader inherits."""
        trace = {} if self.traceparent is None else {TRACEPARENT_VARIABLE: self.traceparent}
        return {**self.session_variables, **trace}

    @contextlib.contextmanager
    def input_fields(self, command: GraderCommand) -> Iterator[JsonObject]:
        """The object that a command grader reads; the files that it names exist until the ``with`` block ends.

        Raises `GraderError` if they cannot be written.
        """
        with temporary_grader_files(command.files_folder, command.confinement) as save_file:
            fields = build_grader_input(
                self.trial.graded_case, self.result, self.trial.answered_at, self.price, save_file
            )
            yield {**fields, "config": self.spec.config}


#: What of a result is of its call, and no grader is told.
_OF_THE_CALL = {"call_count", "max_calls", "queued_ms", "attempts", "cached", "replayed", "continuation"}


class StoredVerdict(Message):
    """What a program or function said of an answer, as it is kept."""

    row: GraderRow
    token_usage: TokenUsage = NO_TOKENS
    error_code: str = GRADER_FAILED
    in_doubt: bool = False


async def never_executed(_: GraderInvocation) -> bytes:
    """Executes nothing: the program of a replayed run, whose verdicts are in the recording."""
    raise GraderError("a replayed run starts no program")


#: Executes a grader once and returns the verdict as JSON. Raises `GraderError`.
ExecuteGrader = Callable[[GraderInvocation], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramGraderRunner:
    """A command or function grader that is ready to grade answers.

    ``execute`` runs it once. ``needs_session`` says whether each execution gets a child session for its calls.
    ``secrets`` are masked in errors.
    """

    spec: ProgramGrader
    execute: ExecuteGrader
    needs_session: bool = True
    secrets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the grader in the results."""
        return self.spec.name

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Give the stored verdict, or execute the grader and keep what it said; see `GraderRunner.grade`."""
        asked = self._asked(trial, result, context)
        if (found := context.answers.find_verdict(asked)) is not None:
            verdict, is_of_others = StoredVerdict.from_wire(found[0]), found[1]
            if not is_of_others:
                return GradingResult(verdict.row, verdict.token_usage, verdict.error_code, in_doubt=verdict.in_doubt)
            context.saved.answers += 1
            return GradingResult(verdict.row.with_fields(calls=0, session_id=None), NO_TOKENS)
        if context.only_stored and self.needs_session:
            raise AnswerMissing
        grading = await self._execute(trial, result, context)
        row = grading.row
        stored = StoredVerdict(
            row=row, token_usage=grading.token_usage, error_code=grading.error_code, in_doubt=grading.in_doubt
        )
        context.answers.keep_verdict(asked, stored.to_wire(), is_whole=row.error is None)
        return grading

    def _asked(self, trial: Trial, result: Result, context: GradingContext) -> NumberedVerdict:
        content = {
            "grader": self.name,
            "case": trial.graded_case.model_dump(mode="json", exclude={"graders"}),
            "target": trial.target,
            "repeat": trial.repeat,
            "answer": json.loads(result.to_wire(without=_OF_THE_CALL)),
        }
        return NumberedVerdict(
            grader=self.name,
            fingerprint=context.fingerprint_of(trial, self.name),
            content=json.dumps(content, sort_keys=True).encode(),
            number=trial.later_number,
            times=context.fingerprints.generation * ASKINGS_OF_A_GENERATION + 1,
            is_cacheable=self.spec.cacheable,
        )

    async def _execute(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Open a child session, execute the grader, and read what it spent."""
        async with context.process_slots:
            reserved = context.reserved_session(self.name)
            session = await self._session(trial, context, reserved) if self.needs_session else None
            variables = {} if session is None else session_variables(context.gateway_url, session.token)
            try:
                price = context.prices.get(trial.target)
                invocation = GraderInvocation(
                    spec=self.spec,
                    trial=trial,
                    result=result,
                    session_variables=variables,
                    price=price,
                    traceparent=current_traceparent(),
                )
                reply = await self.execute(invocation)
                row = parse_verdict(reply, self.secrets)
            except GraderError as error:
                row = GraderRow(error=error.message)
        if session is None:
            return GradingResult(row, NO_TOKENS)
        try:
            session_info = await call_with_retry(context.client_of(session.token).get_info)
        except Fault as fault:
            # Counters that cannot be read are an error, never zero, and what it spent is not known.
            unread = f"its counters cannot be read, so what it spent is not known: {fault.message}"
            row = GraderRow(error=unread, session_id=session.session_id)
            return GradingResult(row, NO_TOKENS, error_code=fault.code, in_doubt=True)
        calls, own_limit = session_info.call_count, self.spec.target.max_calls
        row = row.model_copy(update={"calls": calls, "session_id": session.session_id})
        if row.error is not None and calls >= own_limit:
            limit_note = f"(it made all calls of its own limit, target: {{max_calls: {own_limit}}})"
            row = row.model_copy(update={"error": f"{row.error} {limit_note}"})
        # Those that still run have nobody left who waits for their answer.
        unanswered_calls = session_info.in_doubt + session_info.running + session_info.charged_faults
        in_doubt = row.error is not None and unanswered_calls > 0
        may_lack_budget = row.error is not None and (0 if reserved is None else reserved.calls) <= calls < own_limit
        return GradingResult(row, session_info.token_usage, in_doubt=in_doubt, may_lack_budget=may_lack_budget)

    def planned_calls(self, trial: Trial, context: GradingContext, expected_calls: int) -> Sequence[PlannedCalls]:
        """Implements `GraderRunner.planned_calls`: all that the evaluation file allows it, else as many as expected."""
        request = self._session_request(trial, context)
        if not self.needs_session or not request.max_calls:
            return ()
        lifetime_seconds = self.spec.timeout_seconds + SESSION_GRACE_SECONDS + SESSION_LEAD_SECONDS
        reserve = True if self.spec.has_explicit_limit else min(expected_calls, request.max_calls)
        session = request.model_copy(update={"reserve": reserve, "expires_in_seconds": lifetime_seconds})
        return (PlannedCalls(session=session),)

    def _session_request(self, trial: Trial, context: GradingContext) -> OpenSession:
        """The child session of one execution, with the grader's limits."""
        limits = [each for each in (self.spec.target.max_cost_usd, context.max_cost_usd) if each is not None]
        return OpenSession(
            default_target=judge_target_of(self.spec, trial.target, context.judge_targets),
            max_calls=min(self.spec.target.max_calls, context.max_calls),
            max_cost_usd=None if self.spec.target.max_cost_usd is None else min(limits),
            expires_in_seconds=self.spec.timeout_seconds + SESSION_GRACE_SECONDS,
            label=f"{context.run_name}/{trial.case.id}/{self.name}"[:_LABEL_LENGTH],
            grader=self.name,
        )

    async def _session(self, trial: Trial, context: GradingContext, reserved: ReservedSession | None) -> SessionOpened:
        """The session that was opened before the trial began, or a new one."""
        if reserved is not None:
            return reserved.opened
        request = self._session_request(trial, context)
        # A retry may open a second session; the unused one spends nothing.
        return await call_with_retry(lambda: context.session.open_child(request))


def process_executor(command: GraderCommand) -> ExecuteGrader:
    """Execute a command by starting a new process for each case; its ``env`` is what the process inherits."""

    async def execute(invocation: GraderInvocation) -> bytes:
        started = replace(command, env={**command.env, **invocation.variables})
        with invocation.input_fields(command) as fields:
            return await run_grader(started, json.dumps(fields).encode())

    return execute


def line_executor(pool: GraderProcessPool, command: GraderCommand) -> ExecuteGrader:
    """Execute a command by sending a line to a process of the pool; the variables of the execution are its ``env``
    field.
    """

    async def execute(invocation: GraderInvocation) -> bytes:
        with invocation.input_fields(command) as fields:
            return await pool.request(json.dumps({**fields, "env": invocation.variables}).encode())

    return execute


def function_executor(pool: GraderProcessPool) -> ExecuteGrader:
    """Execute a Python function by sending a line to a process of the pool (`quintain_runner.graders.function_worker`).

    Its stdin line holds the case, the session's URL and token, and the trace context.
    """

    async def execute(invocation: GraderInvocation) -> bytes:
        result, variables = invocation.result, invocation.session_variables
        grader_input = GraderInput(
            case=invocation.trial.graded_case,
            output=result.raw_text,
            target=invocation.trial.target,
            repeat=invocation.trial.repeat,
            messages=result.output,
            token_usage=result.token_usage,
            duration_ms=result.duration_ms,
            config=invocation.spec.config or {},
            steps=steps_of(result),
        )
        connection = (
            SessionConnection(url=variables["QUINTAIN_GATEWAY_URL"], token=variables["QUINTAIN_SESSION_TOKEN"])
            if variables
            else None
        )
        request = FunctionRequest(given=grader_input, session=connection, traceparent=invocation.traceparent)
        return await pool.request(request.model_dump_json().encode())

    return execute


def unconfined_programs(evaluation: Evaluation) -> list[str]:
    """The programs of an evaluation that run with the user's rights: graders, and the dataset's command."""
    names = [
        f"grader {spec.name}"
        for spec in evaluation.graders
        if isinstance(spec, CommandGrader | FunctionGrader) and spec.run_as is None and spec.sandbox is None
    ]
    dataset = evaluation.spec.dataset
    if dataset.command is not None and dataset.run_as is None and dataset.sandbox is None:
        names.append("the dataset's command")
    return names


def variable_warnings(evaluation: Evaluation, env: Mapping[str, str], passed: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable of ``env`` that a script of the evaluation reads and does not get.

    ``passed`` are the variables that every program gets.
    """
    session = session_variables("", "")
    dataset = evaluation.spec.dataset
    scripts: list[tuple[str, Path | None, set[str]]] = []
    for index, spec in evaluation.numbered_graders:
        place = f"graders[{index}] ({spec.name})"
        if isinstance(spec, CommandGrader):
            program = Program(argv=spec.command, env={}, cwd=evaluation.folder / (spec.cwd or "."))
            scripts.append((place, script_path(program), {*spec.env, *spec.env_from}))
        elif isinstance(spec, FunctionGrader):
            module = spec.function.partition(":")[0].replace(".", "/")
            scripts.append((place, evaluation.folder / f"{module}.py", {*spec.env, *spec.env_from}))
    if dataset.command is not None:
        program = Program(argv=dataset.command, env={}, cwd=evaluation.folder)
        scripts.append(("dataset", script_path(program), {*dataset.env, *dataset.env_from}))
    for place, script, own in scripts:
        given = {*passed, *own, *(session if place != "dataset" else ())}
        for name in [] if script is None else withheld_variables(script, given, env):
            yield f"{evaluation.path}: {place}: {script} reads {name}, which it will not get; list it in env_from"
