"""The Python provider: calls a function with the request, in the worker's process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import types
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from quintain.config.python_imports import load_callable
from quintain.config.targets import PythonTarget
from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.message import describe_validation_error
from quintain.errors import ConfigError, ProviderFailed, TargetUnavailable, TimedOut
from quintain_worker.providers.conversation import ignored_settings
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderContext, ProviderFailure

#: The steps of an answer: `AgentStep`, or objects with its names.
_STEPS = TypeAdapter(tuple[AgentStep, ...])

AnswerFunction = Callable[[InvokeRequest], object]

#: What a function is given, for those who expect something else.
GIVEN = "it is given the request, a quintain InvokeRequest: its text is request.question, or that of request.messages"


def python_provider(name: str, target: PythonTarget, context: ProviderContext) -> PythonProvider:
    """Create the Python provider of this target.

    Raises `ConfigError` where its function cannot be imported, or cannot take a request as its signature shows.
    """
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
        ignored = ignored_settings(request.settings, self._name, takes_all=True)
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
            if _is_about_the_request(error, request):
                wrong_use = TargetUnavailable(f"{self._name}: the function raised {type(error).__name__}: {GIVEN}")
                raise ProviderFailure(wrong_use, Billing.UNBILLED) from error
            raise self._failure(f"the function raised {type(error).__name__}") from error
        if isinstance(answer, str):
            return ProviderAnswer(text=answer, ignored=ignored)
        if isinstance(answer, ProviderAnswer):
            steps = self._read_steps(answer.steps) if answer.steps else ()
            return dataclasses.replace(answer, steps=steps, ignored=(*ignored, *answer.ignored))
        raise self._failure(f"the function returned {type(answer).__name__}, not str or ProviderAnswer")

    async def close(self) -> None:
        """Shut the thread pool down without waiting for running functions."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read_steps(self, steps: object) -> tuple[AgentStep, ...]:
        try:
            return _STEPS.validate_python(steps)
        except ValidationError as error:
            reason = describe_validation_error(error)
            raise self._failure(f"the function returned steps that are none: {reason}") from None

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
        function = load_callable(path, folder)
        _check_signature(path, function)
    except ConfigError as error:
        raise ConfigError(f"{field}: {error.message}") from error
    return function


def _check_signature(path: str, function: Callable[..., object]) -> None:
    """Raise `ConfigError` if a function cannot take a request, or answers in a way that no function may."""
    if inspect.isgeneratorfunction(function):
        raise ConfigError(f"{path} yields without async: make it an `async def` that yields text, or return the text")
    try:
        signature = inspect.signature(function)
        with contextlib.suppress(Exception):
            # An annotation may be any expression, and fail as any.
            signature = inspect.signature(function, eval_str=True)
    except (TypeError, ValueError):
        # What is written in C may have none.
        return
    try:
        first = next(iter(signature.bind(None).arguments))
    except TypeError:
        raise ConfigError(f"{path}{signature} cannot be called with one argument: {GIVEN}") from None
    annotation = signature.parameters[first].annotation
    options = get_args(annotation) if get_origin(annotation) in {Union, types.UnionType} else (annotation,)
    if not any(_may_be_request(get_origin(option) or option) for option in options):
        raise ConfigError(f"{path}{signature} does not take what it is given: {GIVEN}")


def _may_be_request(annotation: object) -> bool:
    """Whether a value of this annotation may be a request; what is no class may be."""
    if not isinstance(annotation, type) or annotation in {Any, inspect.Parameter.empty}:
        return True
    try:
        return issubclass(InvokeRequest, annotation)
    except TypeError:
        # A protocol is no class that can be asked.
        return True


def _is_about_the_request(error: BaseException, request: InvokeRequest) -> bool:
    """Whether the function failed because it took its request for something else, such as text."""
    if isinstance(error, AttributeError):
        return error.obj is request
    return isinstance(error, TypeError) and InvokeRequest.__name__ in str(error)
