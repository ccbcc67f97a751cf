"""Plain functions: of the prompt, or of the messages so far; sync or async, or generators of pieces of the answer."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from quintain.agents.conversation import (
    AgentError,
    Conversation,
    TurnInput,
    TurnReport,
    answer_text,
    message_text,
    report_messages,
)
from quintain.errors import ConfigError

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
