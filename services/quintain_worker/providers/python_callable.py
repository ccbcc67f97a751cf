"""The Python provider: calls a function with the request, in processes that are kept for it.

A call that was lost with its process beside others is tried again in a process that runs nothing else: any of them may
have ended it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from functools import partial
from operator import attrgetter
from typing import TypeVar

from quintain.config.program_targets import PythonTarget
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError, ProviderFailed, TimedOut
from quintain.programs.program import CannotStart, Program, program_environment, secrets_of
from quintain_worker.providers.conversation import ignored_settings
from quintain_worker.providers.kept_process import KeptProcess, ProcessLost
from quintain_worker.providers.program_starts import check_ready, not_ready_failure, start_failure
from quintain_worker.providers.provider import (
    Billing,
    CallHolder,
    OnText,
    Provider,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
    ProviderOfCall,
    SessionScopedProvider,
    StartedProvider,
)

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
            await asyncio.gather(*(each.ready() for each in self._processes))

    def for_call(self, holder: CallHolder) -> Provider:
        """Return the provider for one call, of which it is known whether it was lost."""
        return ProviderOfCall(partial(self._answer_call, (holder.session_id, holder.request_id)))

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Call the function and return its answer, within ``timeout_seconds``. Raises `ProviderFailure`."""
        return await self._answer_call(None, request, timeout_seconds, on_text)

    async def close(self) -> None:
        """End all processes, and what they run."""
        await asyncio.gather(*(each.close() for each in (*self._processes, self._apart)))

    async def _answer_call(
        self, key: _Key | None, request: InvokeRequest, timeout_seconds: float, on_text: OnText | None
    ) -> ProviderAnswer:
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
