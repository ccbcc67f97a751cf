"""A Python function as a target: it takes the request and returns the answer, in this very process."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from quintain.config import PythonTarget
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError, ProviderFailed, TimedOut
from quintain_worker.port import Answer, Billing, ProviderFailure
from quintain_worker.providers.build import Surroundings

AnswerFunction = Callable[[InvokeRequest], object]


def python_provider(name: str, target: PythonTarget, surroundings: Surroundings) -> PythonProvider:
    """The provider of this target. Raises `ConfigError` where its function cannot be had."""
    function = _load(f"targets.{name}.callable", target.callable, surroundings.folder)
    return PythonProvider(name, function, threads=target.max_concurrency)


class PythonProvider:
    """Calls a function: a coroutine on the event loop, any other in a thread of its own.

    A thread cannot be stopped: after a deadline or a cancel its function runs on, and its answer is dropped.
    """

    def __init__(self, name: str, function: AnswerFunction, *, threads: int) -> None:
        self._name, self._function = name, function
        # Not the loop's own threads: those are few, and shared with everything else.
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"target-{name}")

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float) -> Answer:
        """What the function returns, within the timeout. Raises `ProviderFailure`."""
        try:
            async with asyncio.timeout(timeout_seconds) as deadline:
                said = await self._call(request)
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

    def _failure(self, what: str) -> ProviderFailure:
        return ProviderFailure(ProviderFailed(f"{self._name}: {what}", charged=True), Billing.BILLED)


def _load(place: str, path: str, folder: Path) -> AnswerFunction:
    module_name, _, function_name = path.partition(":")
    # As Python does for a script: the folder comes first, and stays, as the module may import its neighbours.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # A module may raise anything while it is imported.
        raise ConfigError(f"{place}: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"{place}: {module_name} has no function {function_name}")
    return cast("AnswerFunction", function)
