"""Python graders: functions decorated with ``@quintain.grader``.

    @quintain.grader
    def polite(case, output):
        return "please" in output

A grader takes any fields of `GraderInput` by name, or one parameter of that type, and optionally ``session``: a client
of the grader's own session (synchronous, or asynchronous in an ``async def``). It returns a bool, a score from 0 to 1,
or a dict in one of AgentV's three shapes. An exception is an error of that case, not a score.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, Final, Generic, ParamSpec, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator

from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import ChatMessage, InvokeSettings, OutputMessage, TokenUsage, content_text
from quintain.contracts.values import TargetName

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

#: The name of the parameter that receives a client of the grader's own session.
SESSION_PARAMETER: Final = "session"


#: A text that is more than white space.
Said = Annotated[str, StringConstraints(pattern=r"\S")]

#: The most turns of a conversation.
MAX_TURNS: Final = 100


class SimulatedUser(BaseModel):
    """Who speaks as the user of a conversation: ``target`` is told the ``goal``, and ends with ``stop`` as its message.

    The conversation has ``max_turns`` answers of the target under test at most.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)

    target: TargetName
    goal: Said
    max_turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] = 8
    stop: Said = "DONE"


class Case(BaseModel):
    """One row of a dataset; ``metadata`` holds all fields that have no defined meaning.

    ``settings`` are those of the call of the target, such as its temperature. ``turns`` are what the user says one
    after another, each once the one before is answered, after ``question`` or ``messages`` if there are any; instead
    of them ``user`` may speak. A grader of a conversation is given its ``messages``, up to the last answer.
    ``choices`` are those of a multiple choice, in the order of their letters.
    ``graders`` are those of this case alone, beside the evaluation's: built-in ones, each as in an evaluation file.

    Example::

        Case(id="paris", question="What is the capital of France?", expected="Paris")
    """

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)

    id: Annotated[str, Field(min_length=1)]
    question: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    system_prompt: str | None = None
    expected: JsonValue = None
    settings: InvokeSettings | None = None
    turns: Annotated[list[Said], Field(min_length=1, max_length=MAX_TURNS)] | None = None
    user: SimulatedUser | None = None
    choices: Annotated[list[Said], Field(min_length=2, max_length=26)] | None = None
    graders: list[Any] = Field(default_factory=list)
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_user(self) -> Self:
        if self.turns is not None and self.user is not None:
            raise ValueError("turns and user: give one of them")
        return self

    @property
    def is_conversation(self) -> bool:
        """Whether the target is asked several times, one turn after another."""
        return self.turns is not None or self.user is not None

    @property
    def question_text(self) -> str:
        """The question as text; for a case with messages, the text of the last user message."""
        if self.question is not None:
            return self.question
        user_contents = [message.content for message in self.messages or [] if message.role == "user"]
        return content_text(user_contents[-1]) if user_contents else ""


class GraderInput(BaseModel):
    """The input of a grader: a case and the answer of one target.

    ``output`` is the answer's text, ``repeat`` the repetition (from 1), ``duration_ms`` the duration of the provider's
    call, ``config`` the grader's configuration in the evaluation file, and ``steps`` what the target did.

    Example::

        @quintain.grader
        def short(answer: quintain.GraderInput) -> bool:
            return len(answer.output) < 100
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    case: Case
    output: str
    target: str
    repeat: int = 1
    messages: list[OutputMessage] = Field(default_factory=list)
    token_usage: TokenUsage | None = None
    duration_ms: float = 0
    config: dict[str, JsonValue] = Field(default_factory=dict)
    steps: list[AgentStep] = Field(default_factory=list)


class Grader(Generic[Parameters, Returned]):
    """A grader function together with its parameters; calling it calls the function.

    Created by `grader`.
    """

    def __init__(self, function: Callable[Parameters, Returned]) -> None:
        self._function = function
        self._named_parameters, self._input_parameter = _inspect_parameters(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        return self._function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether the function is an ``async def``."""
        return inspect.iscoroutinefunction(self._function)

    @property
    def wants_session(self) -> bool:
        """Whether the function has a ``session`` parameter."""
        return SESSION_PARAMETER in self._named_parameters

    def grade(self, grader_input: GraderInput, session: object = None) -> object:
        """Call the function with the parameters it takes; an ``async def`` returns an awaitable.

        Example::

            score = polite.grade(GraderInput(case=case, output="Yes, please.", target="gpt4o"))
        """
        arguments = {
            name: session if name == SESSION_PARAMETER else getattr(grader_input, name)
            for name in self._named_parameters
        }
        if self._input_parameter is not None:
            arguments[self._input_parameter] = grader_input
        function: Callable[..., object] = self._function
        return function(**arguments)


def grader(function: Callable[Parameters, Returned]) -> Grader[Parameters, Returned]:
    """Decorator that makes a function a grader, named in an evaluation file as ``function: module:name``.

    Raises `TypeError` for a required parameter that graders do not receive.

    Example::

        @quintain.grader
        def polite(case, output):
            return "please" in output
    """
    return Grader(function)


def _inspect_parameters(function: Callable[..., object]) -> tuple[tuple[str, ...], str | None]:
    """Return the parameters passed by name, and the parameter that receives the whole `GraderInput`, if any."""
    known = [*GraderInput.model_fields, SESSION_PARAMETER]
    named: list[str] = []
    input_parameter: str | None = None
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        if parameter.annotation is GraderInput or str(parameter.annotation).rpartition(".")[2] == GraderInput.__name__:
            input_parameter = name
        elif name in known and parameter.kind is not parameter.POSITIONAL_ONLY:
            named.append(name)
        elif parameter.default is parameter.empty:
            matches = get_close_matches(name, known, n=1)
            hint = f"did you mean {matches[0]!r}? Known" if matches else "known"
            raise TypeError(
                f"the grader {getattr(function, '__name__', 'function')!r} takes {name!r}, which no grader is given; "
                f"{hint}: {', '.join(known)}"
            )
    return tuple(named), input_parameter
