"""Graders in Python: a function with ``@quintain.grader``, and what it is given.

    @quintain.grader
    def polite(case, output):
        return "please" in output

It takes any of `GraderInput`'s fields by name, or one parameter of that type, and ``session``: a client of the
grader's own session (`quintain.sync.SyncEvaluator`; in an ``async def`` a `quintain.Client`). It returns a bool, a
score from 0 to 1, or a dict in one of AgentV's three shapes. An exception is an error of that case, never a score.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Final, Generic, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from quintain.contracts.invoke import ChatMessage, OutputMessage, TokenUsage, text_of

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

#: The parameter by which a grader asks for a client of its own session.
SESSION: Final = "session"


class Case(BaseModel):
    """One row of a dataset. ``metadata`` is every field that has no meaning of its own here."""

    model_config = ConfigDict(frozen=True, strict=True)

    id: Annotated[str, Field(min_length=1)]
    question: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    system_prompt: str | None = None
    expected: JsonValue = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The question as text: where the case has messages, the last that the user said."""
        if self.question is not None:
            return self.question
        said = [message.content for message in self.messages or [] if message.role == "user"]
        return text_of(said[-1]) if said else ""


class GraderInput(BaseModel):
    """What a grader looks at: a case and what a target answered. ``output`` is the answer's text.

    ``duration_ms`` is the target's, in its provider; ``config`` is what the evaluation file says beside the grader.
    """

    model_config = ConfigDict(frozen=True)

    case: Case
    output: str
    target: str
    repeat: int = 1
    messages: list[OutputMessage] = Field(default_factory=list)
    token_usage: TokenUsage | None = None
    duration_ms: float = 0
    config: dict[str, JsonValue] = Field(default_factory=dict)


class Grader(Generic[Parameters, Returned]):
    """A function that grades. Called, it is that function."""

    def __init__(self, function: Callable[Parameters, Returned]) -> None:
        self._function = function
        self._wanted, self._whole = _wanted(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        return self._function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether it is an ``async def``."""
        return inspect.iscoroutinefunction(self._function)

    @property
    def wants_session(self) -> bool:
        """Whether it asks for a client of its session."""
        return SESSION in self._wanted

    def grade(self, given: GraderInput, session: object = None) -> object:
        """What the function returns for this input: of an ``async def`` an awaitable."""
        arguments = {name: session if name == SESSION else getattr(given, name) for name in self._wanted}
        if self._whole is not None:
            arguments[self._whole] = given
        function: Callable[..., object] = self._function
        return function(**arguments)


def grader(function: Callable[Parameters, Returned]) -> Grader[Parameters, Returned]:
    """Make a function a grader: name it in an evaluation file as ``function: module:name``.

    Raises `TypeError` where it has a parameter that no grader is given.
    """
    return Grader(function)


def _wanted(function: Callable[..., object]) -> tuple[tuple[str, ...], str | None]:
    """The parameters of a function that are given by name, and the one that is given everything."""
    known = [*GraderInput.model_fields, SESSION]
    wanted: list[str] = []
    whole: str | None = None
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        if parameter.annotation is GraderInput or str(parameter.annotation).rpartition(".")[2] == GraderInput.__name__:
            whole = name
        elif name in known and parameter.kind is not parameter.POSITIONAL_ONLY:
            wanted.append(name)
        elif parameter.default is parameter.empty:
            near = get_close_matches(name, known, n=1)
            mend = f"did you mean {near[0]!r}? Known" if near else "known"
            raise TypeError(
                f"the grader {getattr(function, '__name__', 'function')!r} takes {name!r}, which no grader is given; "
                f"{mend}: {', '.join(known)}"
            )
    return tuple(wanted), whole
