"""The process that runs one Python grader function: reads a line of JSON for each case, writes a line of JSON.

The runner starts it as ``python -m quintain_runner.graders.function_worker module:function`` in the evaluation file's
folder and keeps it running. What the function prints goes to stderr, and its stdin is empty.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from pydantic import BaseModel

import quintain
from quintain.contracts.token import mask_tokens
from quintain.graders import Grader, GraderInput
from quintain.telemetry import semconv
from quintain.telemetry.spans import span_in_trace

#: How much of an exception's words its error tells, in characters.
_MAX_ERROR_CHARACTERS = 300


class SessionConnection(BaseModel):
    """Where a case's session is reached."""

    url: str
    token: str


class FunctionRequest(BaseModel):
    """A line of stdin: a case to grade; without ``grader_input``, the question what the function wants.
    ``traceparent`` is the trace that its calls belong to."""

    given: GraderInput | None = None
    session: SessionConnection | None = None
    traceparent: str | None = None


class FunctionDescription(BaseModel):
    """What a function is: whether it wants a session, or why it cannot be had."""

    wants_session: bool = False
    error: str | None = None


def main() -> None:
    """Answer every line of stdin until it ends."""
    requests, output = _take_over_stdio()
    # As Python does for a script: the folder comes first, and stays, as the module may import its neighbours.
    sys.path.insert(0, str(Path.cwd()))
    function = _load_function(sys.argv[1])
    for line in requests:
        request = FunctionRequest.model_validate_json(line)
        output.write(_handle_request(function, request).encode("ascii", errors="replace") + b"\n")
        output.flush()


def _take_over_stdio() -> tuple[BinaryIO, BinaryIO]:
    lines, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return lines, replies


def _load_function(path: str) -> Grader[..., object] | str:
    """The grader of this path, or why it cannot be had."""
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except (Exception, SystemExit) as error:
        # A module may raise anything while it is imported.
        return f"{module_name} cannot be imported: {_error_text(error)}"
    if found is None:
        return f"{module_name} has no {name}"
    if not isinstance(found, Grader):
        return f"{path} is no grader; write @quintain.grader above it"
    return found


def _handle_request(function: Grader[..., object] | str, request: FunctionRequest) -> str:
    if isinstance(function, str):
        return FunctionDescription(error=function).model_dump_json()
    if request.given is None:
        return FunctionDescription(wants_session=function.wants_session).model_dump_json()
    try:
        with span_in_trace(semconv.GRADE, request.traceparent):
            returned = _call_function(function, request.given, request.session)
        return json.dumps(_verdict_fields(returned))
    except (Exception, SystemExit) as error:
        return json.dumps({"error": _error_text(error)})


def _call_function(
    function: Grader[..., object], grader_input: GraderInput, connection: SessionConnection | None
) -> object:
    if function.is_async:
        return asyncio.run(_call_async_function(function, grader_input, connection))
    if connection is None or not function.wants_session:
        return function.grade(grader_input)
    with quintain.sync.connect(connection.url, connection.token) as session:
        return function.grade(grader_input, session)


async def _call_async_function(
    function: Grader[..., object], grader_input: GraderInput, connection: SessionConnection | None
) -> object:
    if connection is None or not function.wants_session:
        return await cast("Awaitable[object]", function.grade(grader_input))
    async with quintain.connect(connection.url, connection.token) as session:
        return await cast("Awaitable[object]", function.grade(grader_input, session))


def _verdict_fields(returned: object) -> Mapping[str, object]:
    if isinstance(returned, bool):
        return {"pass": returned}
    if isinstance(returned, int | float):
        return {"score": returned}
    if isinstance(returned, Mapping):
        return returned
    raise TypeError(f"it returned {type(returned).__name__}; return True or False, a score from 0 to 1, or a dict")


def _error_text(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(Path.cwd())]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return mask_tokens(f"{type(error).__name__}: {error}")[:_MAX_ERROR_CHARACTERS] + where


if __name__ == "__main__":
    main()
