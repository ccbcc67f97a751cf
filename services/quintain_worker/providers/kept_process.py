"""A process that is kept for the function of a Python target, and the calls in it (`python_process` says its lines)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from quintain.errors import ConfigError, ProviderFailed
from quintain.programs.line_program import LineProgram, ProgramEnded, line_program
from quintain.programs.program import CannotStart, Program, TooMuchOutput, describe_end, secrets_of
from quintain.runtime.concurrency import start_task
from quintain_worker.providers.program_starts import quoted_end, read_ready
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderFailure
from quintain_worker.providers.python_answers import answer_from_wire, failure_from_wire, from_wire

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

    def __init__(self, name: str, program: LineProgram, end: Callable[[], object]) -> None:
        self._name, self._program, self._end = name, program, end
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
        """Return the process once it is ready, whoever starts it. Raises `CannotStart`; `ConfigError` with a reason."""
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
                await read_ready(program, self._program)
                self._process = process = RunningProcess(self._name, program, task.cancel)
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
            # Whoever waited for it may be gone.
            started.exception()
        finally:
            started.cancel()
            if self._starting is started:
                self._starting = None
