"""The provider of programs that are agents: a process for each conversation, which is told of a turn in a line."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from quintain.agents.recognition import SENDS_NOTHING
from quintain.config.program_targets import AgentTarget, ProgramTarget
from quintain.contracts.agents import Turn
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import (
    ConfigError,
    ConversationLost,
    Overloaded,
    ProviderFailed,
    ReplyTooLarge,
    TimedOut,
)
from quintain.programs.agent_urls import NO_GATEWAY, AgentUrl, AgentUrls
from quintain.programs.line_program import LineProgram, ProgramEnded, line_program
from quintain.programs.program import (
    CannotStart,
    Program,
    TooMuchOutput,
    describe_end,
    program_environment,
    secrets_of,
)
from quintain.programs.sandbox import Confinement
from quintain.runtime.concurrency import IdleLimit
from quintain_worker.providers.agents.conversation_pool import ConversationPool, PoolProcess, PoolTerms
from quintain_worker.providers.agents.lines import (
    ReadLine,
    TurnReading,
    end_line,
    parse_line,
    read_agent_line,
    turn_line,
)
from quintain_worker.providers.agents.session import AgentModels
from quintain_worker.providers.conversation import ignored_settings, prompts_of, refusal
from quintain_worker.providers.program_starts import (
    check_ready,
    not_ready_failure,
    quoted_end,
    read_ready,
    start_failure,
)
from quintain_worker.providers.provider import (
    Billing,
    CallHolder,
    ConversationHolder,
    OnText,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
    SessionScopedProvider,
    steps_before_failure,
)
from quintain_worker.providers.quoting import quoted

#: The longest line that a program may print, and all its lines of one turn together, in bytes.
MAX_LINE_BYTES, MAX_TURN_BYTES = 8 * 1024 * 1024, 32 * 1024 * 1024
_LIMITS = f"a line of {MAX_LINE_BYTES // 1024**2} MiB, or a turn of {MAX_TURN_BYTES // 1024**2} MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """A program that is an agent: how it is started, and how it is spoken to.

    ``one_turn``: it gets the prompt as it is, answers, and ends.
    ``is_kept``: it prints ``{"type": "ready"}`` once it can take a turn, and is kept for the next conversation.
    """

    program: Program
    max_conversations: int
    conversation_idle_seconds: float
    idle_seconds: float | None = None
    is_kept: bool = False
    one_turn: bool = False
    read_line: ReadLine = read_agent_line

    @property
    def secrets(self) -> tuple[str, ...]:
        """What is masked where it is quoted."""
        return secrets_of(self.program.env)


def program_confinement(target: ProgramTarget, folder: Path) -> Confinement:
    """What the program of a target may do: in a sandbox it reads the configuration's folder, and has no network."""
    return Confinement(run_as=target.run_as, sandbox=target.sandbox, read=(folder, folder / (target.cwd or ".")))


def check_confinement(name: str, target: ProgramTarget, context: ProviderContext) -> None:
    """Raise `ConfigError` if this machine cannot confine the program of a target."""
    try:
        program_confinement(target, context.folder).check()
    except ConfigError as error:
        raise ConfigError(f"targets.{name}: {error.message}") from None


def agent_of(
    target: ProgramTarget, context: ProviderContext, command: Sequence[str], *, is_kept: bool = False
) -> AgentCommand:
    """Return the agent that a target's program is."""
    env = program_environment(context.env, env_from=target.env_from, own=target.env)
    return AgentCommand(
        program=Program(
            argv=command,
            cwd=context.folder / (target.cwd or "."),
            env=env,
            confinement=program_confinement(target, context.folder),
        ),
        max_conversations=target.max_conversations,
        conversation_idle_seconds=target.conversation_idle_seconds,
        idle_seconds=target.idle_seconds,
        is_kept=is_kept,
    )


class AgentProgramProvider(SessionScopedProvider, ConversationHolder):
    """Tells a program of each turn, and reads what it prints of it."""

    def __init__(self, name: str, agent: AgentCommand, models: AgentModels | None) -> None:
        self._name, self._agent, self._models = name, agent, models
        terms = PoolTerms(
            size=agent.max_conversations,
            idle_seconds=agent.conversation_idle_seconds,
            end_line=end_line if agent.is_kept else None,
        )
        self._pool = ConversationPool(name, self._start, terms)
        self._has_turns = True

    async def answer(
        self,
        request: InvokeRequest,
        *,
        timeout_seconds: float,
        on_text: OnText | None = None,
        holder: CallHolder | None = None,
    ) -> ProviderAnswer:
        """Have one turn with a program and return its answer, within ``timeout_seconds``. Raises `ProviderFailure`.

        It finds the conversations of the holder's session only.
        """
        ignored = ignored_settings(request.settings, f"{self._name}, a program,")
        turn = request.turn
        conversation_id = secrets.token_hex(8) if turn is None else turn.conversation_id
        if self._agent.one_turn:
            turn, line = None, prompts_of(request)[0].encode(errors="surrogatepass")
        else:
            line = turn_line(request, conversation_id, 1 if turn is None else turn.number)
        ends_at = asyncio.get_running_loop().time() + timeout_seconds
        reading = TurnReading(on_text)
        key = conversation_id if holder is None else _key(holder.session_id, conversation_id)
        with steps_before_failure(reading.steps):
            async with AsyncExitStack() as stack:
                session, token = None, ""
                if self._models is not None and holder is not None:
                    session, token = await stack.enter_async_context(self._models.session(holder, ends_at))
                process = await stack.enter_async_context(self._process(key, turn, ends_at, timeout_seconds))
                if process.url is not None and token:
                    stack.enter_context(process.url.standing_for(token))
                await self._have_turn(process.program, line, reading, ends_at, timeout_seconds)
                process.is_last = reading.error is not None
                if reading.answer is None:
                    raise self._failure(f"the program answered with an error: {self._quoted(reading.error or '')}")
                if session is not None:
                    reading.answer = await session.with_usage(reading.answer)
        return dataclasses.replace(
            reading.answer, ignored=ignored, holds_conversation=turn is not None and not turn.last
        )

    @asynccontextmanager
    async def _process(
        self, key: str, turn: Turn | None, ends_at: float, timeout_seconds: float
    ) -> AsyncIterator[PoolProcess]:
        """Take the process of a conversation for one turn. Raises `ProviderFailure`, unbilled, if there is none."""
        self._check_turns(turn)
        async with AsyncExitStack() as stack:
            try:
                # A program may never be ready.
                async with asyncio.timeout_at(ends_at):
                    having = self._pool.turn(key, turn, wait_seconds=timeout_seconds)
                    process = await stack.enter_async_context(having)
            except ConversationLost as lost:
                raise ProviderFailure(lost, Billing.UNBILLED) from None
            except Overloaded as busy:
                raise ProviderFailure(busy, Billing.UNBILLED, retryable=True) from None
            except CannotStart as error:
                raise start_failure(self._name, self._agent.program.argv[0], error) from None
            except TimeoutError:
                failure = TimedOut(f"{self._name}: the program was not ready within {timeout_seconds:g} s")
                raise ProviderFailure(failure, Billing.UNBILLED) from None
            self._check_turns(turn)
            yield process

    @property
    def holds_conversations(self) -> bool:
        """Whether a process is kept for the next turn."""
        return not self._agent.one_turn

    def end_conversation(self, session_id: str, conversation_id: str) -> None:
        """End a conversation of a session, unless one of its turns runs."""
        self._pool.end_conversation(_key(session_id, conversation_id))

    async def close(self) -> None:
        """End all conversations and their programs."""
        await self._pool.close()
        if self._models is not None:
            await self._models.close()

    async def _start(self, stack: AsyncExitStack) -> tuple[LineProgram, AgentUrl | None]:
        program, url = self._agent.program, None
        if self._models is not None:
            url = self._models.urls.add()
            program = url.given_to(program)
        started = await stack.enter_async_context(line_program(program, line_limit=MAX_LINE_BYTES))
        if self._agent.is_kept:
            try:
                self._has_turns = (await read_ready(started, program))["turns"]
            except ConfigError as error:
                raise not_ready_failure(self._name, error, self._agent.secrets) from None
        return started, url

    def _check_turns(self, turn: Turn | None) -> None:
        """Refuse a conversation with a program that said it keeps no history."""
        if turn is not None and not self._has_turns:
            raise refusal("turn", "this agent takes one question, and keeps no history")

    async def _have_turn(
        self, program: LineProgram, line: bytes, reading: TurnReading, ends_at: float, timeout_seconds: float
    ) -> None:
        idle = IdleLimit(self._agent.idle_seconds)
        try:
            async with asyncio.timeout_at(ends_at), idle.watch():
                if self._agent.one_turn:
                    program.send_all(line)
                else:
                    program.send(line)
                await self._read(program, reading, idle)
        except TimeoutError:
            seconds = self._agent.idle_seconds
            silence = "" if seconds is None else f", or wrote nothing for {seconds:g} s"
            failure = TimedOut(f"{self._name}: the program did not answer within {timeout_seconds:g} s{silence}")
            raise ProviderFailure(failure, Billing.UNKNOWN) from None
        except ProgramEnded as ended:
            how = describe_end(ended.exit_code, quoted_end(program.stderr, self._agent.secrets))
            message = f"{self._name}: the program ended in the middle of a turn, {how}"
            raise ProviderFailure(ProviderFailed(message, charged=True), Billing.UNKNOWN) from None
        except TooMuchOutput:
            too_large = ReplyTooLarge(f"{self._name}: the program printed more than {_LIMITS}")
            raise ProviderFailure(too_large, Billing.BILLED) from None

    async def _read(self, program: LineProgram, reading: TurnReading, idle: IdleLimit) -> None:
        size = 0
        while not reading.is_over:
            line = await program.read()
            idle.touch()
            size += len(line)
            if size > MAX_TURN_BYTES:
                raise TooMuchOutput
            try:
                if line.strip():
                    self._agent.read_line(parse_line(line), reading)
            except ValueError as error:
                printed = self._quoted(line.decode(errors="replace"))
                raise self._failure(
                    f"the program printed a line that cannot be used: {self._quoted(str(error))}: {printed}"
                ) from None
            # Many lines may be there at once, and others wait for the loop.
            await asyncio.sleep(0)

    def _quoted(self, text: str) -> str:
        return quoted(text, self._agent.secrets)

    def _failure(self, message: str) -> ProviderFailure:
        return ProviderFailure(ProviderFailed(f"{self._name}: {message}", charged=True), Billing.BILLED)


def _key(session_id: str, conversation_id: str) -> str:
    """Return the name of a conversation in the pool: no other session has a turn in it."""
    return f"{session_id} {conversation_id}"


def agent_provider(name: str, target: AgentTarget, context: ProviderContext) -> AgentProgramProvider:
    """Create the agent provider of this target. Raises `ConfigError` if this machine cannot confine its program."""
    check_confinement(name, target, context)
    models = AgentModels.of_target(name, target.child_session, context)
    return AgentProgramProvider(name, _program(target, context), models)


def check_agent(name: str, target: AgentTarget, context: ProviderContext) -> bool:
    """Import the agent in a process of its own, and return whether it takes turns.

    Raises `ConfigError`, which says why it cannot be used.
    """
    agent = _program(target, context, "--check")
    program = agent.program
    if target.child_session is not None:
        # Clients are made at import, and take the URL then.
        program = AgentUrls(NO_GATEWAY).add().given_to(program)
    try:
        ready = check_ready(program)
    except ConfigError as error:
        raise ConfigError(f"targets.{name}: {error.message}") from None
    takes_turns: bool = ready["turns"]
    return takes_turns


def _program(target: AgentTarget, context: ProviderContext, *options: str) -> AgentCommand:
    own = {name: value for name, value in SENDS_NOTHING.items() if name not in target.env_from}
    target = target.model_copy(update={"env": {**own, **target.env}})
    return agent_of(target, context, [sys.executable, "-m", "quintain.agents", *options, target.agent], is_kept=True)
