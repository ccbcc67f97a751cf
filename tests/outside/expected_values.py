"""What an ``expected.yaml`` says: its keys, its tags, and how a value is compared with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from support.model_server import ScriptedResponse, StreamedResponse

ApiName = Literal["chat", "messages", "responses"]


class _Fields(BaseModel):
    """Keys that are read; any other is an error."""

    model_config = ConfigDict(extra="forbid")


class Answer(_Fields):
    """What the model server answers: the bytes of a file, after this status and these headers.

    ``stream`` is a file that is sent event by event, or in pieces of so many bytes. ``then`` is what its connection
    does after it.
    """

    body: str = ""
    stream: str = ""
    piece_bytes: int = 0
    status: int = 200
    headers: dict[str, str] = {}
    then: Literal["end", "close", "reset", "stall"] = "end"
    delay_seconds: float = 0

    def read(self, folder: Path) -> ScriptedResponse | StreamedResponse:
        if not self.stream:
            body = (folder / self.body).read_bytes() if self.body else b""
            return ScriptedResponse(
                status=self.status, headers=self.headers, body=body, delay_seconds=self.delay_seconds
            )
        data = (folder / self.stream).read_bytes()
        pieces = (
            [data[at : at + self.piece_bytes] for at in range(0, len(data), self.piece_bytes)]
            if self.piece_bytes
            else re.findall(rb".+?(?:\r\n\r\n|\r\r|\n\n|\Z)", data, re.DOTALL)
        )
        return StreamedResponse(events=pieces, then=self.then)


class Call(_Fields):
    """A call through the gateway in each of these APIs, whole and streamed, with more fields for the body."""

    target: str
    apis: list[ApiName] = ["chat", "messages", "responses"]
    stream: list[bool] = [False, True]
    body: dict[str, Any] = {}


class Request(_Fields):
    """A request to the gateway as a client sends it; ``body`` is a file. The session's token stands for ``{token}``."""

    method: str = "POST"
    path: str
    headers: dict[str, str] = {}
    body: str = ""


class Step(_Fields):
    """One thing that is done with the input, and the right value of what it makes.

    Only keys that are given are compared, except ``code`` and ``left_out``: a command ends with 0 and leaves out
    nothing unless it says otherwise, and no call ends with an error. ``answer`` is what each call, or the request, is
    answered with. ``asked`` are the bodies that the model server gets, in any order.
    """

    command: str = ""
    call: Call | None = None
    request: Request | None = None
    code: int = 0
    left_out: list[str] = []
    stdout: Any = None
    stderr: Any = None
    files: dict[str, Any] = {}
    rows: dict[str, Any] | None = None
    answer: dict[str, Any] = {}
    asked: list[Any] | None = None


class Expected(_Fields):
    """The whole of an ``expected.yaml``: why the value is right, what models answer, and what is done."""

    why: str
    env: dict[str, str] = {}
    answers: dict[str, Answer | list[Answer]] = {}
    steps: list[Step]


class Has(list[Any]):
    """``!has``: a text with all of these in it."""


class Lacks(list[Any]):
    """``!lacks``: a text, or nothing, with none of these in it."""


class OneOf(list[Any]):
    """``!one-of``: any of these values."""


class Absent(list[Any]):
    """``!absent``: there is no such key or file."""


class _Loader(yaml.SafeLoader):
    """YAML with the four tags above."""


def _several(kind: type[list[Any]]) -> Any:
    def construct(loader: _Loader, node: yaml.Node) -> list[Any]:
        if isinstance(node, yaml.SequenceNode):
            return kind(loader.construct_sequence(node, deep=True))
        return kind([loader.construct_scalar(node)] if isinstance(node, yaml.ScalarNode) and node.value else [])

    return construct


for tag, kind in {"!has": Has, "!lacks": Lacks, "!one-of": OneOf, "!absent": Absent}.items():
    _Loader.add_constructor(tag, _several(kind))

MISSING = Absent()


def differences(expected: Any, actual: Any, place: str) -> Iterator[str]:
    """Where a value is not what is expected: of a mapping the keys that are expected, of a list every item."""
    if isinstance(expected, OneOf):
        holds = any(not [*differences(one, actual, place)] for one in expected)
    elif isinstance(expected, Has | Lacks):
        text = actual if isinstance(actual, str) else "" if actual is MISSING else json.dumps(actual)
        holds = all((part in text) == isinstance(expected, Has) for part in expected)
    elif isinstance(expected, Absent) or actual is MISSING:
        holds = isinstance(expected, Absent) and actual is MISSING
    elif isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            yield from differences(value, actual.get(key, MISSING), f"{place}.{key}")
        return
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
        return
    else:
        holds = expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
    if not holds:
        yield f"{place}: {type(expected).__name__} {expected!r} is expected, not {actual!r}"


def exactly(expected: Mapping[str, Any], actual: Mapping[str, Any], place: str) -> Iterator[str]:
    """As `differences`, and nothing else is there."""
    yield from differences(expected, actual, place)
    yield from (f"{place}: {key} is not expected" for key in actual.keys() - expected.keys())


def read_expected(folder: Path) -> Expected:
    """Read the right values of an input."""
    return Expected.model_validate(yaml.load((folder / "expected.yaml").read_text(), _Loader))
