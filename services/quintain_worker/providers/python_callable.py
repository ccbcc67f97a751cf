"""The Python provider: calls a function with the request, in processes that are kept for it.

`quintain_worker.providers.python_process` is what runs there, and says its lines. A call that was lost with its process
beside others is tried again in a process that runs nothing else: any of them may have ended it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TypeVar

from quintain.config.program_targets import PythonTarget
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError, ProviderFailed, TimedOut
from quintain.programs.line_program import LineProgram, ProgramEnded, line_program
from quintain.programs.program import CannotStart, Program, TooMuchOutput, describe_end, program_environment, secrets_of
from quintain.runtime.concurrency import start_task
from quintain_worker.providers.conversation import ignored_settings
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
    OnText,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
    SessionScopedProvider,
    StartedProvider,
)
from quintain_worker.providers.python_answers import answer_from_wire, failure_from_wire, from_wire

log = logging.getLogger(__name__)

#: How many calls are remembered that were lost beside others; the oldest is forgotten first.
MAX_SUSPECTS = 10_000

#: A call: its session and its request id.
_Key = tuple[str, str]

_Waited = TypeVar("_Waited")


def python_provider(name: str, target: PythonTarget, context: ProviderContext) -> PythonProvider:
    """Create the Python provider of this target."""
    return PythonProvider(name, _program(name, target, context), processes=target.processes)


def check_function(name: str, target: PythonTarget, context: ProviderContext) -> list[str]:
    """Import the function in a process of its own, and return where it takes its request for text.

    Raises `ConfigError` where it cannot be imported, or cannot take a request as its signature shows.
    """
    with _of_target(name):
        uses: list[str] = check_ready(_program(name, target, context, "--check"))["wrong_uses"]
    return [f"targets.{name}.callable: {target.callable}: {use}" for use in uses]


def _program(name: str, target: PythonTarget, context: ProviderContext, *options: str) -> Program:
    # -P: a file in the folder with the name of a standard module must not replace that module.
    argv = [sys.executable, "-P", "-m", "quintain_worker.providers.python_process", *options, name, target.callable]
    try:
        env = program_environment(context.env, env_from=target.env_from, own=target.env)
    except ConfigError as error:
        raise ConfigError(f"targets.{name}: {error.message}") from None
    return Program(argv=argv, cwd=context.folder, env=env)


@contextlib.contextmanager
def _of_target(name: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"targets.{name}.callable: {error.message}") from None


class PythonProvider(SessionScopedProvider, StartedProvider):
    """Sends each request to the process with the fewest calls.

    A process that has ended is replaced with the next call. One in which a call goes on after its deadline takes no
    further calls, and is ended after those that it runs.
    """

    def __init__(self, name: str, program: Program, *, processes: int) -> None:
        self._name, self._program = name, program
        self._processes = [KeptProcess(name, program) for _ in range(processes)]
        #: Runs the calls that were lost beside others, one after another.
        self._apart, self._turn_apart = KeptProcess(name, program), asyncio.Lock()
        self._suspects: dict[_Key, None] = {}

    async def start(self) -> None:
        """Implements `StartedProvider.start`."""
        with _of_target(self._name):
            process, *_ = await asyncio.gather(*(each.ready() for each in self._processes))
        for use in process.wrong_uses:
            log.warning("targets.%s.callable: %s", self._name, use)

    async def close(self) -> None:
        """End all processes, and what they run."""
        await asyncio.gather(*(each.close() for each in (*self._processes, self._apart)))

    async def answer(
        self,
        request: InvokeRequest,
        *,
        timeout_seconds: float,
        on_text: OnText | None = None,
        holder: CallHolder | None = None,
    ) -> ProviderAnswer:
        """Call the function and return its answer, within ``timeout_seconds``. Raises `ProviderFailure`."""
        key = None if holder is None else (holder.session_id, holder.request_id)
        ignored = ignored_settings(request.settings, self._name, takes_all=True)
        ends_at = asyncio.get_running_loop().time() + timeout_seconds
        ask = partial(self._ask, key, request, ends_at, on_text)
        if key is None or key not in self._suspects:
            answer = await ask(min(self._processes, key=attrgetter("load")))
        else:
            async with self._alone(key, ends_at):
                answer = await ask(self._apart)
        return dataclasses.replace(answer, ignored=(*ignored, *answer.ignored)) if ignored else answer

    @contextlib.asynccontextmanager
    async def _alone(self, key: _Key, ends_at: float) -> AsyncIterator[None]:
        """Wait until no other call runs apart; the process there is ended after the last one."""
        await self._until(ends_at, self._turn_apart.acquire())
        try:
            yield
        finally:
            self._suspects.pop(key, None)
            if self._apart.load or not self._suspects:
                self._apart.end()
            self._turn_apart.release()

    async def _ask(
        self, key: _Key | None, request: InvokeRequest, ends_at: float, on_text: OnText | None, kept: KeptProcess
    ) -> ProviderAnswer:
        try:
            process = await self._until(ends_at, kept.ready())
        except ConfigError as error:
            raise not_ready_failure(self._name, error, secrets_of(self._program.env)) from None
        except CannotStart as error:
            raise start_failure(self._name, self._program.argv[0], error) from None
        try:
            return await process.call(request.to_wire(), ends_at, on_text)
        except TimeoutError:
            failure = TimedOut(f"{self._name}: the deadline passed while the function ran")
            raise ProviderFailure(failure, Billing.UNKNOWN) from None
        except ProcessLost as lost:
            if lost.beside and key is not None:
                self._suspects[key] = None
                if len(self._suspects) > MAX_SUSPECTS:
                    del self._suspects[next(iter(self._suspects))]
            message = f"{self._name}: its process ended in the middle of the call, {lost.how}"
            failed = ProviderFailed(message, charged=True)
            raise ProviderFailure(failed, Billing.UNKNOWN, retryable=lost.beside) from None

    async def _until(self, ends_at: float, waiting: Awaitable[_Waited]) -> _Waited:
        """Wait for what is needed before the function is called. Raises `ProviderFailure` after the deadline."""
        try:
            async with asyncio.timeout_at(ends_at):
                return await waiting
        except TimeoutError:
            failure = TimedOut(f"{self._name}: the deadline passed before its process was ready")
            raise ProviderFailure(failure, Billing.UNBILLED) from None


#: The longest line that a process may write, in bytes: an answer of the largest size, and its number.
MAX_LINE_BYTES = 33 * 1024 * 1024

#: How long a call may take to end after its deadline, in seconds; then its process takes no further calls.
GRACE_SECONDS = 1.0

#: How long a process may take to end by itself, in seconds: somewhat longer than it gives itself.
END_SECONDS = 2.5


class ProcessLost(Exception):
    """The process ended in the middle of a call; ``how``, and whether it ran others ``beside`` it."""

    def __init__(self, how: str, *, beside: bool) -> None:
        super().__init__(how)
        self.how, self.beside = how, beside


@dataclass(slots=True, eq=False)
class _FunctionCall:
    """A call in the process: ``end`` is the word and the JSON of its end; it is done once nobody waits for it."""

    end: asyncio.Future[tuple[bytes, bytes] | ProcessLost]
    on_text: OnText | None


class RunningProcess:
    """A process that is ready; ``end`` ends it."""

    def __init__(
        self, name: str, program: LineProgram, end: Callable[[], object], wrong_uses: Sequence[str] = ()
    ) -> None:
        self._name, self._program, self._end = name, program, end
        #: Where its function takes its request for text.
        self.wrong_uses = wrong_uses
        self._calls: dict[int, _FunctionCall] = {}
        self._numbers = itertools.count(1)
        self.takes_calls = True

    @property
    def load(self) -> int:
        """How many calls run in it."""
        return len(self._calls)

    async def call(self, request: bytes, ends_at: float, on_text: OnText | None) -> ProviderAnswer:
        """Run one call until ``ends_at``, in the loop's seconds.

        After its deadline or a cancellation a coroutine is cancelled; a thread runs on, and its answer is dropped.
        Raises `ProviderFailure`, `ProcessLost`, `TimeoutError`.
        """
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        call = self._calls[number] = _FunctionCall(loop.create_future(), on_text)
        self._program.send(b"%b %d %b" % (b"call" if on_text is None else b"stream", number, request))
        try:
            async with asyncio.timeout_at(ends_at):
                end = await call.end
        finally:
            if number in self._calls:
                self._program.send(b"cancel %d" % number)
                loop.call_at(max(ends_at, loop.time()) + GRACE_SECONDS, self._retire_with, number)
        if isinstance(end, ProcessLost):
            raise end
        kind, body = end
        if kind == b"failed":
            raise failure_from_wire(body)
        try:
            return answer_from_wire(body)
        except ValueError as error:
            message = f"{self._name}: the function returned an answer that cannot be used: {error}"
            raise ProviderFailure(ProviderFailed(message, charged=True), Billing.BILLED) from None

    async def read(self) -> None:
        """Hand out what the process writes until it ends. Raises `ProgramEnded`; others where a line is none."""
        while True:
            kind, number, body = (*(await self._program.read()).split(b" ", 2), b"")[:3]
            call = self._calls[int(number)]
            if kind != b"text":
                del self._calls[int(number)]
                if not call.end.done():
                    call.end.set_result((kind, body))
                self._end_if_unused()
            elif call.on_text is not None and not call.end.done():
                call.on_text(str(from_wire(body)))

    def lose(self, how: str) -> None:
        """Tell the calls that run in it that it has ended."""
        self.takes_calls = False
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            if not call.end.done():
                call.end.set_result(ProcessLost(how, beside=len(calls) > 1))

    async def finish(self) -> None:
        """Close its input, and wait for it to end."""
        await self._program.finish(END_SECONDS)

    def _retire_with(self, number: int) -> None:
        """Take no further calls if this one, for which nobody waits, still runs."""
        if number in self._calls:
            self.takes_calls = False
            self._end_if_unused()

    def _end_if_unused(self) -> None:
        if not self.takes_calls and all(call.end.done() for call in self._calls.values()):
            self._end()


class KeptProcess:
    """Starts a process when it is needed, and another one after its end."""

    def __init__(self, name: str, program: Program) -> None:
        self._name, self._program = name, program
        self._process: RunningProcess | None = None
        self._starting: asyncio.Future[RunningProcess] | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def load(self) -> int:
        """How many calls run in it."""
        return 0 if self._process is None else self._process.load

    async def ready(self) -> RunningProcess:
        """Return the process once it is ready. Raises `CannotStart`; `ConfigError` with a reason."""
        if self._process is not None and self._process.takes_calls:
            return self._process
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_future()
            start_task(self._running, self._run(self._starting), name=f"process of {self._name}")
        return await asyncio.shield(self._starting)

    def end(self) -> None:
        """Kill it."""
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """End it."""
        if self._process is not None:
            await self._process.finish()
        self.end()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self, started: asyncio.Future[RunningProcess]) -> None:
        """The life of one process."""
        task = asyncio.current_task()
        assert task is not None, "it runs as a task"
        try:
            async with line_program(self._program, line_limit=MAX_LINE_BYTES) as program:
                said = await read_ready(program, self._program)
                self._process = process = RunningProcess(self._name, program, task.cancel, said["wrong_uses"])
                started.set_result(process)
                self._starting = None
                try:
                    await process.read()
                except ProgramEnded as ended:
                    stderr = quoted_end(program.stderr, secrets_of(self._program.env))
                    process.lose(describe_end(ended.exit_code, stderr))
                except (TooMuchOutput, LookupError, ValueError):
                    process.lose("it wrote a line that cannot be read")
                finally:
                    process.lose("its worker ended it")
        except (CannotStart, ConfigError) as error:
            started.set_exception(error)
            # Nobody may be waiting for it any more.
            started.exception()
        finally:
            started.cancel()
            if self._starting is started:
                self._starting = None
