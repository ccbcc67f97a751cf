"""A Python function as a target: it takes the request and returns the answer, in this very process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

from quintain.config import PythonTarget
from quintain.config.callables import load_callable
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError, ProviderFailed, TimedOut
from quintain_worker.port import Answer, Billing, Heard, ProviderFailure
from quintain_worker.providers.build import Surroundings

AnswerFunction = Callable[[InvokeRequest], object]


def python_provider(name: str, target: PythonTarget, surroundings: Surroundings) -> PythonProvider:
    """The provider of this target. Raises `ConfigError` where its function cannot be had."""
    function = _load(f"targets.{name}.callable", target.callable, surroundings.folder)
    return PythonProvider(name, function, threads=target.max_concurrency)


class PythonProvider:
    """Calls a function: a coroutine on the event loop, any other in a thread of its own. An asynchronous generator
    yields the answer's text in pieces, on the event loop.

    A thread cannot be stopped: after a deadline or a cancel its function runs on, and its answer is dropped.
    """

    def __init__(self, name: str, function: AnswerFunction, *, threads: int) -> None:
        self._name, self._function = name, function
        # Not the loop's own threads: those are few, and shared with everything else.
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"target-{name}")

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """What the function returns, within the timeout. Raises `ProviderFailure`."""
        try:
            async with asyncio.timeout(timeout_seconds) as deadline:
                said = await self._call(request)
                if isinstance(said, AsyncGenerator):
                    said = await self._gathered(said, heard)
        except ProviderFailure:
            raise
        except (Exception, SystemExit) as error:
            # Whatever a stranger's function raises is that target's failure; its words may hold secrets.
            if deadline.expired():
                failure = TimedOut(f"{self._name}: the deadline passed while the function ran")
                raise ProviderFailure(failure, Billing.UNKNOWN) from None
            raise self._failure(f"the function raised {type(error).__name__}") from error
        if isinstance(said, str):
            return Answer(text=said)
        if isinstance(said, Answer):
            return said
        raise self._failure(f"the function returned {type(said).__name__}, not str or Answer")

    async def close(self) -> None:
        """Start no more threads; those that run are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, request: InvokeRequest) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(request)
        loop = asyncio.get_running_loop()
        said = await loop.run_in_executor(self._threads, self._function, request)
        return await said if inspect.isawaitable(said) else said

    async def _gathered(self, pieces: AsyncGenerator[object], heard: Heard | None) -> str:
        texts: list[str] = []
        async with aclosing(pieces):
            async for piece in pieces:
                if not isinstance(piece, str):
                    raise self._failure(f"the function yielded {type(piece).__name__}, not str")
                texts.append(piece)
                if heard is not None and piece:
                    heard(piece)
        return "".join(texts)

    def _failure(self, what: str) -> ProviderFailure:
        return ProviderFailure(ProviderFailed(f"{self._name}: {what}", charged=True), Billing.BILLED)


def _load(place: str, path: str, folder: Path) -> AnswerFunction:
    try:
        return load_callable(path, folder)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}") from error
