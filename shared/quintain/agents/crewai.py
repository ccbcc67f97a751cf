"""CrewAI's crews and agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any

from crewai.events import (
    LLMCallCompletedEvent,
    LLMCallFailedEvent,
    LLMCallStartedEvent,
    ToolUsageErrorEvent,
    ToolUsageFinishedEvent,
    crewai_event_bus,
)

from quintain.agents import conversation
from quintain.apis.reported_steps import tool_call_part
from quintain.errors import ConfigError


class CrewConversation(conversation.Conversation):
    """Starts a crew with the prompt as one of its inputs. A crew has no turns."""

    keeps_history = False

    def __init__(self, crew: Any) -> None:
        inputs = sorted(crew.fetch_inputs())
        if len(inputs) != 1:
            raise ConfigError(f"its tasks have the inputs {inputs}; it is given one, so write {{prompt}} in a task")
        self._crew, self._input = crew, inputs[0]

    async def answer(self, turn: conversation.TurnInput, report: conversation.TurnReport) -> str:
        """Run the crew."""
        if turn.number > 1:
            raise conversation.AgentError("a crew keeps no history; give one of its agents instead")
        # Its tasks keep what they were given.
        crew = self._crew.copy()
        with _recording(report):
            return str((await crew.akickoff(inputs={self._input: turn.new_text})).raw)


class CrewAgentConversation(conversation.Conversation):
    """Runs an agent for each turn, with the messages of the turns before."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._messages: list[dict[str, Any]] = []

    async def answer(self, turn: conversation.TurnInput, report: conversation.TurnReport) -> str:
        """Run the agent."""
        messages = [*self._messages, *turn.new_messages]
        with _recording(report):
            text = str((await self._agent.kickoff_async(messages)).raw)
        self._messages = [*messages, {"role": "assistant", "content": text}]
        return text


@contextmanager
def _recording(report: conversation.TurnReport) -> Iterator[None]:
    """Report at the end, in its order, what the events of this block tell: their handlers run in threads."""
    started: dict[str, float] = {}
    told: list[tuple[float, Callable[[], None]]] = []

    def on_start(_: Any, event: Any) -> None:
        started[event.call_id] = report.at(event.timestamp.timestamp())

    def on_end(_: Any, event: Any) -> None:
        ended, usage = report.at(event.timestamp.timestamp()), getattr(event, "usage", None) or {}
        said = getattr(event, "response", None) or ()
        start = started.get(event.call_id, ended)
        chat: dict[str, Any] = {"start_ms": start, "end_ms": ended, "model": event.model, "agent": event.agent_role}
        chat["tokens"] = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        chat["error_type"] = "LLMCallFailed" if isinstance(event, LLMCallFailedEvent) else None
        told.append((start, partial(report.chat, _parts(said), **chat)))

    def on_tool(_: Any, event: Any) -> None:
        ended = report.at(event.timestamp.timestamp())
        start, fields = ended, {"result": getattr(event, "error", None), "error_type": "ToolUsageError"}
        if isinstance(event, ToolUsageFinishedEvent):
            start, fields = report.at(event.started_at.timestamp()), {"result": event.output}
        called = {"arguments": event.tool_args, "agent": event.agent_role}
        tool = partial(report.tool, event.tool_name, start_ms=start, end_ms=ended, **called, **fields)
        told.append((start, tool))

    handlers: dict[Any, Any] = dict.fromkeys((LLMCallCompletedEvent, LLMCallFailedEvent), on_end)
    handlers |= {LLMCallStartedEvent: on_start, ToolUsageFinishedEvent: on_tool, ToolUsageErrorEvent: on_tool}
    for kind, handler in handlers.items():
        crewai_event_bus.on(kind)(handler)
    try:
        yield
    finally:
        crewai_event_bus.flush()
        for kind, handler in handlers.items():
            crewai_event_bus.off(kind, handler)
        for _, tell in sorted(told, key=itemgetter(0)):
            tell()


def _parts(said: Any) -> list[dict[str, Any]]:
    if isinstance(said, str):
        return conversation.text_part(said)
    return [tool_call_part(one) for one in said if isinstance(one, dict) and "function" in one]
