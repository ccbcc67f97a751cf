"""A process that holds one grader function and grades case after case: a line of JSON in, a line of JSON out.

The runner starts it as ``python -m quintain_runner.function_host module:function`` in the evaluation file's folder and
keeps it warm. What the function prints goes to stderr, and what it reads from stdin is empty.
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
from quintain.contracts.token import mask
from quintain.graders import Grader, GraderInput
from quintain.telemetry import conventions
from quintain.telemetry.spans import joining

#: How much of an exception's words its error tells, in characters.
_TOLD = 300


class Door(BaseModel):
    """Where a case's session is reached."""

    url: str
    token: str


class Question(BaseModel):
    """A line of stdin: a case to grade; without ``given``, the question what the function wants. ``traceparent`` is the
    trace that its calls belong to."""

    given: GraderInput | None = None
    session: Door | None = None
    traceparent: str | None = None


class Description(BaseModel):
    """What a function is: whether it wants a session, or why it cannot be had."""

    wants_session: bool = False
    error: str | None = None


def main() -> None:
    """Answer every line of stdin until it ends."""
    lines, replies = _own_streams()
    # As Python does for a script: the folder comes first, and stays, as the module may import its neighbours.
    sys.path.insert(0, str(Path.cwd()))
    function = _load(sys.argv[1])
    for line in lines:
        question = Question.model_validate_json(line)
        replies.write(_reply(function, question).encode("ascii", errors="replace") + b"\n")
        replies.flush()


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    lines, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return lines, replies


def _load(path: str) -> Grader[..., object] | str:
    """The grader of this path, or why it cannot be had."""
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except (Exception, SystemExit) as error:
        # A module may raise anything while it is imported.
        return f"{module_name} cannot be imported: {_told(error)}"
    if found is None:
        return f"{module_name} has no {name}"
    if not isinstance(found, Grader):
        return f"{path} is no grader; write @quintain.grader above it"
    return found


def _reply(function: Grader[..., object] | str, question: Question) -> str:
    if isinstance(function, str):
        return Description(error=function).model_dump_json()
    if question.given is None:
        return Description(wants_session=function.wants_session).model_dump_json()
    try:
        with joining(conventions.GRADE, question.traceparent):
            said = _grade(function, question.given, question.session)
        return json.dumps(_verdict(said))
    except (Exception, SystemExit) as error:
        return json.dumps({"error": _told(error)})


def _grade(function: Grader[..., object], given: GraderInput, door: Door | None) -> object:
    if function.is_async:
        return asyncio.run(_grade_async(function, given, door))
    if door is None or not function.wants_session:
        return function.grade(given)
    with quintain.sync.connect(door.url, door.token) as session:
        return function.grade(given, session)


async def _grade_async(function: Grader[..., object], given: GraderInput, door: Door | None) -> object:
    if door is None or not function.wants_session:
        return await cast("Awaitable[object]", function.grade(given))
    async with quintain.connect(door.url, door.token) as session:
        return await cast("Awaitable[object]", function.grade(given, session))


def _verdict(said: object) -> Mapping[str, object]:
    if isinstance(said, bool):
        return {"pass": said}
    if isinstance(said, int | float):
        return {"score": said}
    if isinstance(said, Mapping):
        return said
    raise TypeError(f"it returned {type(said).__name__}; return True or False, a score from 0 to 1, or a dict")


def _told(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(Path.cwd())]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return mask(f"{type(error).__name__}: {error}")[:_TOLD] + where


if __name__ == "__main__":
    main()
