"""``python -m quintain_worker.providers.python_process TARGET MODULE:FUNCTION``: runs the function of a Python target.

The process says ``{"type": "ready"}`` once the function is imported, or ``{"type": "error"}`` with a message. Then each
line is a word, the number of a call and mostly JSON. The worker sends::

    call 1 REQUEST      and STREAM in place of CALL where the caller wants the text in pieces
    cancel 1            nobody waits for this call any more

and the process answers each call with one of the last three, also one that was cancelled::

    text 1 PIECE
    answer 1 ANSWER     what it returned (`quintain_worker.providers.python_answers`)
    failed 1 FAILURE
    ended 1             it was cancelled
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import dataclasses
import inspect
import os
import select
import sys
import textwrap
import time
import types
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from quintain.config.python_imports import load_callable
from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.message import MAX_BODY_BYTES, describe_validation_error
from quintain.errors import ConfigError, ProviderFailed, ReplyTooLarge, TargetUnavailable
from quintain.programs.line_wire import LineWire
from quintain_worker.providers.provider import Billing, ProviderAnswer, ProviderFailure
from quintain_worker.providers.python_answers import answer_to_wire, failure_to_wire, to_wire

#: How many threads there may be: the most calls that a target may have in flight.
MAX_THREADS = 10_000

#: The largest answer, in bytes.
MAX_ANSWER_BYTES = 32 * 1024 * 1024

#: How long the process may take to end once the worker has closed its input, in seconds.
END_SECONDS = 2.0

#: The steps of an answer: `AgentStep`, or objects with its names.
_STEPS = TypeAdapter(tuple[AgentStep, ...])


AnswerFunction = Callable[[InvokeRequest], object]

#: What a function is given, for those who expect something else.
GIVEN = "it is given the request, a quintain InvokeRequest: its text is request.question, or that of request.messages"


class FunctionProcess:
    """Calls the function for each request.

    A coroutine function and an asynchronous generator, which yields the answer's text in pieces, run on the event loop;
    any other function runs in a thread, which cannot be stopped.
    """

    def __init__(self, target: str, function: AnswerFunction, wire: LineWire) -> None:
        self._target, self._function, self._wire = target, function, wire
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"target-{target}")
        self._tasks: dict[bytes, asyncio.Task[tuple[bytes, bytes]]] = {}

    async def serve(self) -> None:
        """Answer calls until the input ends."""
        reader = asyncio.StreamReader(limit=2 * MAX_BODY_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._wire.input)
        while line := await reader.readline():
            kind, number, *body = line.rstrip().split(b" ", 2)
            if kind != b"cancel":
                request = InvokeRequest.from_wire(body[0])
                answering = loop.create_task(self._answer(number, request, is_streamed=kind == b"stream"))
                self._tasks[number] = answering
                answering.add_done_callback(partial(self._tell_end, number))
            elif number in self._tasks:
                self._tasks[number].cancel()

    def _tell_end(self, number: bytes, answering: asyncio.Task[tuple[bytes, bytes]]) -> None:
        del self._tasks[number]
        if answering.cancelled():
            self._wire.write(b"ended %b" % number)
        else:
            kind, body = answering.result()
            self._wire.write(b"%b %b %b" % (kind, number, body))

    async def _answer(self, number: bytes, request: InvokeRequest, *, is_streamed: bool) -> tuple[bytes, bytes]:
        """Answer one call: return the word of its end, and the JSON."""

        def tell_piece(text: str) -> None:
            self._wire.write(b"text %b %b" % (number, to_wire(text)))

        try:
            return b"answer", await self._call(request, tell_piece if is_streamed else None)
        except ProviderFailure as failure:
            return b"failed", self._failure_to_wire(failure)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return b"failed", failure_to_wire(self._failure("the function raised CancelledError"))

    async def _call(self, request: InvokeRequest, on_text: Callable[[str], None] | None) -> bytes:
        """Call the function and return what it answers, as JSON. Raises `ProviderFailure`."""
        try:
            answer = await self._run(request)
            if isinstance(answer, AsyncGenerator):
                answer = await self._join_chunks(answer, on_text)
        except (ProviderFailure, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            # Whatever the user's function raises is a failure of the target; its message may hold secrets and is not
            # quoted.
            if is_about_the_request(error, request):
                wrong_use = TargetUnavailable(f"{self._target}: the function raised {type(error).__name__}: {GIVEN}")
                raise ProviderFailure(wrong_use, Billing.UNBILLED) from None
            raise self._failure(f"the function raised {type(error).__name__}") from None
        wire = self._to_wire(answer)
        if len(wire) > MAX_ANSWER_BYTES:
            message = f"{self._target}: the answer is larger than {MAX_ANSWER_BYTES // 1024**2} MiB"
            raise ProviderFailure(ReplyTooLarge(message), Billing.BILLED)
        return wire

    def _to_wire(self, answer: object) -> bytes:
        if isinstance(answer, str):
            return to_wire(answer)
        if not isinstance(answer, ProviderAnswer):
            raise self._failure(f"the function returned {type(answer).__name__}, not str or ProviderAnswer")
        try:
            if answer.steps:
                answer = dataclasses.replace(answer, steps=_STEPS.validate_python(answer.steps))
            return answer_to_wire(answer)
        except ValidationError as error:
            reason = describe_validation_error(error)
            raise self._failure(f"the function returned steps that are none: {reason}") from None
        except ValueError as error:
            raise self._failure(f"the function returned an answer that cannot be sent as JSON: {error}") from None

    def _failure_to_wire(self, failure: ProviderFailure) -> bytes:
        try:
            return failure_to_wire(failure)
        except ValueError as error:
            message = f"the function raised a ProviderFailure that cannot be sent as JSON: {error}"
            return failure_to_wire(self._failure(message))

    async def _run(self, request: InvokeRequest) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(request)
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, self._function, request)
        try:
            answer = await asyncio.shield(running)
        except asyncio.CancelledError:
            # Its end is told when the thread has ended.
            await asyncio.wait((running,))
            raise
        return await answer if inspect.isawaitable(answer) else answer

    async def _join_chunks(self, chunks: AsyncGenerator[object], on_text: Callable[[str], None] | None) -> str:
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
        return ProviderFailure(ProviderFailed(f"{self._target}: {message}", charged=True), Billing.BILLED)


def load_function(path: str, folder: Path) -> AnswerFunction:
    """Import the function ``module:name``.

    Raises `ConfigError`, also where it cannot take a request, as its signature shows.
    """
    function = load_callable(path, folder)
    _check_signature(path, function)
    return function


def is_about_the_request(error: BaseException, request: InvokeRequest) -> bool:
    """Whether the function failed because it took its request for something else, such as text."""
    if isinstance(error, AttributeError):
        return error.obj is request
    return isinstance(error, TypeError) and InvokeRequest.__name__ in str(error)


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


def wrong_uses(function: Any) -> list[str]:
    """Say where the source of a function takes its request for text; empty if it does not, or has no source.

    What a function does with its request after a test with `isinstance`, or by another name, is not seen.
    """
    if not inspect.isroutine(function) and not inspect.isclass(function):
        # An object that can be called is what its method is.
        function = getattr(function, "__call__", function)  # noqa: B004 -- its method is looked at
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return []
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    arguments = [*definition.args.posonlyargs, *definition.args.args][inspect.ismethod(function) :]
    name = next((argument.arg for argument in arguments), None)
    nodes = list(ast.walk(definition))
    mentions = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    tested = any(
        isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "hasattr", "getattr"} for node in nodes
    )
    if tested or any(not isinstance(node.ctx, ast.Load) for node in mentions):
        return []
    found = [ast.unparse(node) for node in nodes if any(_takes_for_text(node, one) for one in mentions)]
    return [f"`{expression.strip().splitlines()[0]}` takes the request for text; {GIVEN}" for expression in found[:1]]


def _takes_for_text(node: ast.AST, mention: ast.Name) -> bool:
    match node:
        case ast.Attribute(value=value, attr=name):
            return value is mention and not hasattr(InvokeRequest, name) and name not in InvokeRequest.model_fields
        case ast.Subscript(value=value) | ast.FormattedValue(value=value) | ast.For(iter=value):
            return value is mention
        case ast.comprehension(iter=value):
            return value is mention
        case ast.BinOp(left=left, right=right):
            return mention in {left, right}
        case ast.Call(func=ast.Name(id="len" | "str"), args=[argument]):
            return argument is mention
    return False


def _end_after(descriptor: int) -> None:
    """End this process when the worker has closed its input or is gone, whatever the function does."""
    closing = select.poll()
    closing.register(descriptor, 0)
    closing.poll()
    time.sleep(END_SECONDS)
    os._exit(1)


def main() -> int:
    """Serve the function that the command line names."""
    parser = argparse.ArgumentParser("python -m quintain_worker.providers.python_process", description=__doc__)
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("callable", metavar="MODULE:FUNCTION")
    parser.add_argument("--check", action="store_true", help="only say what is wrong with it, and exit with 2")
    arguments = parser.parse_args()
    wire = LineWire()
    try:
        function = load_function(arguments.callable, Path.cwd())
    except ConfigError as error:
        wire.write(to_json({"type": "error", "message": error.message}))
        return 2
    wire.write(to_json({"type": "ready", "wrong_uses": wrong_uses(function)}))
    if not arguments.check:
        Thread(target=_end_after, args=(wire.input.fileno(),), daemon=True).start()
        asyncio.run(FunctionProcess(arguments.target, function, wire).serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
