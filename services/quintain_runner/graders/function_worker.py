"""The process that runs one Python grader function: reads a line of JSON for each case, writes a line of JSON.

The runner starts it as ``python -m quintain_runner.graders.function_worker module:function`` in the evaluation file's
folder and keeps it running. What the function prints goes to stderr, and its stdin is empty.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import cast

from pydantic import BaseModel

import quintain
from quintain.config.python_imports import describe_raised, load_object
from quintain.errors import ConfigError
from quintain.graders import Grader, GraderInput
from quintain.observe import semconv
from quintain.observe.spans import span_in_trace
from quintain.programs.line_wire import LineWire

#: The most characters of an exception's message that an error shows.
_MAX_ERROR_CHARACTERS = 300


class SessionConnection(BaseModel):
    """The gateway URL and token of the session that a case's grader may use."""

    url: str
    token: str


class FunctionRequest(BaseModel):
    """One line of stdin: a case to grade, or, if ``given`` is None, a request for the function's description.

    ``session`` is None if the function needs none. ``traceparent`` is the W3C trace context of the trial, or None.
    """

    given: GraderInput | None = None
    session: SessionConnection | None = None
    traceparent: str | None = None


class FunctionDescription(BaseModel):
    """The description of a function: whether it takes a session, or the error that prevents its use."""

    wants_session: bool = False
    error: str | None = None


def main() -> None:
    """Answer each line of stdin with a line on stdout, until stdin ends."""
    wire = LineWire()
    function = _load_function(sys.argv[1])
    for line in wire.input:
        request = FunctionRequest.model_validate_json(line)
        wire.write(_handle_request(function, request).encode(errors="replace"))


def _load_function(path: str) -> Grader[..., object] | str:
    """Import the grader function at ``module:name``; a string is the error that prevents its use."""
    try:
        found = load_object(path, Path.cwd(), kind="function")
    except ConfigError as error:
        return error.message
    if not isinstance(found, Grader):
        return f"{path} is not a grader; write @quintain.grader above it"
    return found


def _handle_request(function: Grader[..., object] | str, request: FunctionRequest) -> str:
    """The JSON reply to one request."""
    if isinstance(function, str):
        return FunctionDescription(error=function).model_dump_json()
    if request.given is None:
        return FunctionDescription(wants_session=function.wants_session).model_dump_json()
    try:
        with span_in_trace(semconv.GRADE, request.traceparent):
            returned = _call_function(function, request.given, request.session)
        return json.dumps(_verdict_fields(returned))
    except (Exception, SystemExit) as error:
        return json.dumps({"error": describe_raised(error, Path.cwd(), max_characters=_MAX_ERROR_CHARACTERS)})


def _call_function(
    function: Grader[..., object], grader_input: GraderInput, connection: SessionConnection | None
) -> object:
    """Call the function with the case, and with a session if it takes one."""
    if function.is_async:
        return asyncio.run(_call_async_function(function, grader_input, connection))
    if connection is None or not function.wants_session:
        return function.grade(grader_input)
    with quintain.sync.connect(connection.url, connection.token) as session:
        return function.grade(grader_input, session)


async def _call_async_function(
    function: Grader[..., object], grader_input: GraderInput, connection: SessionConnection | None
) -> object:
    """Call an async function with the case, and with a session if it takes one."""
    if connection is None or not function.wants_session:
        return await cast("Awaitable[object]", function.grade(grader_input))
    async with quintain.connect(connection.url, connection.token) as session:
        return await cast("Awaitable[object]", function.grade(grader_input, session))


def _verdict_fields(returned: object) -> Mapping[str, object]:
    """The function's return value as the fields of a verdict. Raises `TypeError` if it is not a bool, number or
    mapping.
    """
    if isinstance(returned, bool):
        return {"pass": returned}
    if isinstance(returned, int | float):
        return {"score": returned}
    if isinstance(returned, Mapping):
        return returned
    raise TypeError(f"it returned {type(returned).__name__}; return True or False, a score from 0 to 1, or a dict")


if __name__ == "__main__":
    main()
