"""The Python provider: calls a function with the request, in the worker's process."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

from quintain.config import PythonTarget
from quintain.config.callables import load_callable
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError, ProviderFailed, TimedOut
from quintain_worker.providers.factory import ProviderContext
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderFailure
from quintain_worker.providers.settings import EVERY_SETTING, take_settings

AnswerFunction = Callable[[InvokeRequest], object]


def python_provider(name: str, target: PythonTarget, context: ProviderContext) -> PythonProvider:
    """Create the Python provider of this target. Raises `ConfigError` where its function cannot be imported."""
    function = _load_function(f"targets.{name}.callable", target.callable, context.folder)
    return PythonProvider(name, function, threads=target.max_concurrency)


class PythonProvider:
    """Calls a Python function for each request.

    A coroutine function and an asynchronous generator, which yields the answer's text in pieces, run on the event loop;
    any other function runs in a thread. A thread cannot be stopped: after a deadline or a cancellation the function
    runs on, and its answer is dropped.
    """

    def __init__(self, name: str, function: AnswerFunction, *, threads: int) -> None:
        self._name, self._function = name, function
        # A pool of its own: the loop's default executor has few threads and is shared.
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"target-{name}")

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Call the function and return its answer, within ``timeout_seconds``. Raises `ProviderFailure`."""
        taken = take_settings(request.settings, EVERY_SETTING, self._name)
        try:
            async with asyncio.timeout(timeout_seconds) as deadline:
                answer = await self._call(request)
                if isinstance(answer, AsyncGenerator):
                    answer = await self._join_chunks(answer, on_text)
        except ProviderFailure:
            raise
        except (Exception, SystemExit) as error:
            # Any exception of the user's function is a failure of the target; its message may hold secrets and is not
            # quoted.
            if deadline.expired():
                failure = TimedOut(f"{self._name}: the deadline passed while the function ran")
                raise ProviderFailure(failure, Billing.UNKNOWN) from None
            raise self._failure(f"the function raised {type(error).__name__}") from error
        if isinstance(answer, str):
            return ProviderAnswer(text=answer, ignored=taken.ignored)
        if isinstance(answer, ProviderAnswer):
            return dataclasses.replace(answer, ignored=(*taken.ignored, *answer.ignored))
        raise self._failure(f"the function returned {type(answer).__name__}, not str or ProviderAnswer")

    async def close(self) -> None:
        """Shut the thread pool down without waiting for running functions."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, request: InvokeRequest) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(request)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, self._function, request)
        return await answer if inspect.isawaitable(answer) else answer

    async def _join_chunks(self, chunks: AsyncGenerator[object], on_text: OnText | None) -> str:
        texts: list[str] = []
        async with aclosing(chunks):
            async for chunk in chunks:
                if not isinstance(chunk, str):
                    raise self._failure(f"the function yielded {type(chunk).__name__}, not str")
                texts.append(chunk)
                if on_text is not None and chunk:
                    on_text(chunk)
        return "".join(texts)

    def _failure(self, message: str) -> ProviderFailure:
        return ProviderFailure(ProviderFailed(f"{self._name}: {message}", charged=True), Billing.BILLED)


def _load_function(field: str, path: str, folder: Path) -> AnswerFunction:
    try:
        return load_callable(path, folder)
    except ConfigError as error:
        raise ConfigError(f"{field}: {error.message}") from error
