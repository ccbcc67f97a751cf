"""What every adapter has in common: what a turn brings, and what an agent did in it; and the adapter of functions.

A function is of the prompt, or of the messages so far; sync or async, or a generator of pieces of the answer.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from quintain.apis.reported_steps import read_steps
from quintain.contracts.agents import AgentStep, Operation
from quintain.errors import ConfigError


class AgentError(Exception):
    """An agent gave no answer; the message is for its user."""


@dataclass(frozen=True, slots=True)
class TurnInput:
    """One turn: ``messages`` are the whole conversation, with ``role`` and ``content``; the prompt is the last one's.

    An agent that has answered an earlier turn of this conversation keeps the others itself.
    """

    number: int
    prompt: str
    messages: Sequence[Mapping[str, Any]]

    @property
    def new_messages(self) -> list[dict[str, Any]]:
        """What the agent has not seen: all messages of a first turn, else the last one, each with its text."""
        new = self.messages if self.number == 1 else self.messages[-1:]
        return [{**message, "content": message_text(message)} for message in new]

    @property
    def new_text(self) -> str:
        """What the agent has not seen, as one text: a single message as it is, several as ``role: text`` each."""
        new = self.new_messages
        return new[0]["content"] if len(new) == 1 else "\n\n".join(f"{each['role']}: {each['content']}" for each in new)


class TurnReport:
    """Collects what an agent does in one turn: its steps, and pieces of its answer where it streams."""

    def __init__(self, on_step: Callable[[AgentStep], None], on_text: Callable[[str], None]) -> None:
        self.step, self.text = on_step, on_text
        self._began, self._began_at = time.monotonic(), time.time()
        #: The tokens of all its model calls, of which the framework told any.
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None

    def now(self) -> float:
        """The milliseconds since the turn began."""
        return (time.monotonic() - self._began) * 1000

    def at(self, timestamp: float) -> float:
        """The milliseconds from the beginning of the turn to a time in seconds since the epoch."""
        return max(0.0, (timestamp - self._began_at) * 1000)

    def chat(
        self,
        parts: Sequence[dict[str, Any]],
        *,
        start_ms: float,
        end_ms: float | None = None,
        tokens: tuple[int | None, int | None] = (None, None),
        **fields: Any,
    ) -> None:
        """Report a model call with what the model said, and its tokens: of the input and of the output."""
        if tokens[0] is not None or tokens[1] is not None:
            self.input_tokens = (self.input_tokens or 0) + (tokens[0] or 0)
            self.output_tokens = (self.output_tokens or 0) + (tokens[1] or 0)
        said = [{"role": "assistant", "parts": list(parts)}] if parts else None
        named = {"messages": said, "input_tokens": tokens[0], "output_tokens": tokens[1]}
        self._report("chat", start_ms, end_ms, {**named, **fields})

    def tool(self, name: str, *, start_ms: float, end_ms: float | None = None, **fields: Any) -> None:
        """Report a tool call; ``arguments`` and ``result`` may be anything."""
        values: dict[str, Any] = {key: as_json(fields[key]) for key in ("arguments", "result") if key in fields}
        self._report("execute_tool", start_ms, end_ms, {**fields, **values, "tool": name})

    def handoff(self, agent: str) -> None:
        """Report that another agent took over."""
        self._report("invoke_agent", self.now(), None, {"agent": agent})

    def _report(self, operation: Operation, start_ms: float, end_ms: float | None, fields: dict[str, Any]) -> None:
        times = {"start_ms": start_ms, "duration_ms": None if end_ms is None else max(0.0, end_ms - start_ms)}
        self.step(AgentStep(**{"operation": operation, **times, **fields}))


class Conversation(ABC):
    """One conversation with an agent, which keeps the turns that it has answered, unless it does not keep history."""

    keeps_history = True

    @abstractmethod
    def answer(self, turn: TurnInput, report: TurnReport) -> str | Awaitable[str]:
        """Answer one turn. An answer that is no coroutine was made outside any event loop.

        Raises whatever the agent raises, and `AgentError`.
        """


def text_part(text: str) -> list[dict[str, Any]]:
    """The part of a model's message with its text; none if it said nothing."""
    return [{"type": "text", "content": text}] if text else []


def reasoning_part(text: str) -> list[dict[str, Any]]:
    """The part of a model's message with its reasoning; none if it told none."""
    return [{"type": "reasoning", "content": text}] if text else []


def call_part(call_id: str | None, name: str, arguments: object) -> dict[str, Any]:
    """The part of a model's message that calls a tool."""
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": as_json(arguments)}


def as_json(value: object) -> JsonValue:
    """A value as JSON has it; a text that is a JSON object is that object, and what JSON cannot hold is its text."""
    if isinstance(value, str):
        return _object_in(value)
    try:
        plain: JsonValue = to_jsonable_python(value, inf_nan_mode="strings", bytes_mode="base64", fallback=str)
    except (ValueError, RecursionError):
        return str(value)
    return plain


def _object_in(text: str) -> JsonValue:
    if text.lstrip().startswith("{"):
        try:
            parsed: JsonValue = json.loads(text, parse_constant=str)
        except ValueError:
            return text
        return parsed
    return text


def answer_text(value: object) -> str:
    """An agent's answer as text: a text as it is, structured output as JSON. Raises `AgentError` for anything else."""
    if isinstance(value, str):
        return value
    if value is not None:
        try:
            return to_json(value).decode()
        except (PydanticSerializationError, ValueError):
            pass
    raise AgentError(f"it answered with {type(value).__name__}, not with text or what JSON can hold; return a str")


def report_messages(messages: Iterable[Mapping[str, Any]], report: TurnReport) -> None:
    """Report the model's messages, and the tools that it called, as OpenAI's chat API has them. Raises `AgentError`."""
    now = report.now()
    try:
        steps = read_steps(as_json([dict(message) for message in messages]))
    except ValueError as error:
        raise AgentError(f"its messages cannot be read: {error}") from None
    for step in steps:
        report.step(step.with_fields(start_ms=now))


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a message's content. Raises `AgentError` for parts that are not text."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise AgentError("a message has content that is not text")
    return "".join(map(str, texts))


_OF_MESSAGES = frozenset({"messages", "history", "conversation"})
_A_LIST = re.compile(r"(\w+\.)*(list|List|Sequence|Iterable)\b")


class FunctionConversation(Conversation):
    """Calls a function for each turn, with the prompt or, if it takes a list, with the messages.

    It is given the messages that it returned itself at the turn before, if it returned the whole conversation.
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function, self.keeps_history = function, _takes_messages(function)
        self._history: list[Any] = []

    def answer(self, turn: TurnInput, report: TurnReport) -> str | Awaitable[str]:
        """Call the function."""
        if not self.keeps_history:
            if turn.number > 1:
                message = "it takes one text, and sees no earlier turn; let it take `messages`, a list, instead"
                raise AgentError(message)
            return self._finish(self._function(turn.new_text), [], report)
        given = [*self._history, *turn.new_messages]
        return self._finish(self._function(list(given)), given, report)

    def _finish(self, returned: object, given: list[Any], report: TurnReport) -> str | Awaitable[str]:
        if inspect.isawaitable(returned):
            return self._awaited(returned, given, report)
        if isinstance(returned, AsyncIterator):
            return self._streamed(returned, given, report)
        if isinstance(returned, Iterator):
            returned = "".join([self._piece(piece, report) for piece in returned])
        return self._text(returned, given, report)

    async def _awaited(self, returned: Awaitable[object], given: list[Any], report: TurnReport) -> str:
        finished = self._finish(await returned, given, report)
        return finished if isinstance(finished, str) else await finished

    async def _streamed(self, returned: AsyncIterator[object], given: list[Any], report: TurnReport) -> str:
        pieces = [self._piece(piece, report) async for piece in returned]
        return self._text("".join(pieces), given, report)

    def _piece(self, piece: object, report: TurnReport) -> str:
        report.text(text := answer_text(piece))
        return text

    def _text(self, returned: object, given: list[Any], report: TurnReport) -> str:
        messages = [returned] if isinstance(returned, Mapping) and "role" in returned else returned
        if not isinstance(messages, list) or not all(isinstance(each, Mapping) and "role" in each for each in messages):
            text = answer_text(returned)
            self._history = [*given, {"role": "assistant", "content": text}]
            return text
        is_whole = messages[: len(given)] == given
        self._history = messages if is_whole else [*given, *messages]
        new = self._history[len(given) :]
        report_messages(new, report)
        said = [message for message in new if message["role"] == "assistant"]
        if not said:
            raise AgentError("it returned messages, and none of them is a new one of the assistant")
        return message_text(said[-1])


def _takes_messages(function: Callable[[Any], object]) -> bool:
    """Whether a function takes messages and not a text. Raises `ConfigError` if it cannot take one argument."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return False
    first, needed = next(iter(parameters), None), [each for each in parameters if each.default is each.empty]
    needed = [each for each in needed if each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}]
    if first is None or first.kind in {first.KEYWORD_ONLY, first.VAR_KEYWORD}:
        raise ConfigError(
            "it takes no argument, and is given one, the prompt; if it makes an agent, give what it returns"
        )
    if not set(needed) <= {first}:
        names = ", ".join(each.name for each in needed)
        raise ConfigError(f"it takes {len(needed)} arguments ({names}), and is given one: the prompt, or `messages`")
    annotation = first.annotation if isinstance(first.annotation, str) else inspect.formatannotation(first.annotation)
    return first.name in _OF_MESSAGES or _A_LIST.match(annotation) is not None
