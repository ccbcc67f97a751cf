"""CrewAI's crews and agents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crewai.events import (
    LLMCallCompletedEvent,
    LLMCallFailedEvent,
    LLMCallStartedEvent,
    ToolUsageErrorEvent,
    ToolUsageFinishedEvent,
    crewai_event_bus,
)

from quintain.agents.conversation import AgentError, TurnInput, TurnReport, openai_calls, text_part
from quintain.errors import ConfigError

#: The names of a crew's inputs that are given the prompt, the first of those that it has.
_PROMPTS = ("prompt", "question", "input", "query", "message", "topic")


class CrewConversation:
    """Starts a crew with the prompt as one of its inputs. A crew has no turns."""

    def __init__(self, crew: Any) -> None:
        self._crew, inputs = crew, crew.fetch_inputs()
        self._input = next((name for name in _PROMPTS if name in inputs), next(iter(inputs), ""))
        if len(inputs) != 1:
            names = ", ".join(sorted(inputs)) or "none"
            raise ConfigError(f"its tasks have these inputs: {names}; it is given one, so write {{prompt}} in a task")

    async def answer(self, turn: TurnInput, report: TurnReport) -> str:
        """Run the crew."""
        if turn.number > 1:
            raise AgentError("a crew keeps no history; give one of its agents instead")
        # Its tasks keep what they were given.
        crew = self._crew.copy()
        with _recording(report):
            return str((await crew.akickoff(inputs={self._input: turn.new_text})).raw)


class CrewAgentConversation:
    """Runs an agent for each turn, with the messages of the turns before."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._messages: list[dict[str, Any]] = []

    async def answer(self, turn: TurnInput, report: TurnReport) -> str:
        """Run the agent."""
        messages = [*self._messages, *turn.new_messages]
        with _recording(report):
            text = str((await self._agent.kickoff_async(messages)).raw)
        self._messages = [*messages, {"role": "assistant", "content": text}]
        return text


@contextmanager
def _recording(report: TurnReport) -> Iterator[None]:
    """Report what the events of this block tell; a process runs one agent at a time."""
    started: dict[str, float] = {}

    def on_start(_: Any, event: Any) -> None:
        started[event.call_id] = report.at(event.timestamp.timestamp())

    def on_end(_: Any, event: Any) -> None:
        ended, usage = report.at(event.timestamp.timestamp()), getattr(event, "usage", None) or {}
        report.chat(
            _parts(getattr(event, "response", None)),
            start_ms=started.pop(event.call_id, ended),
            end_ms=ended,
            tokens=(usage.get("prompt_tokens"), usage.get("completion_tokens")),
            model=event.model,
            agent=event.agent_role,
            error_type="LLMCallFailed" if isinstance(event, LLMCallFailedEvent) else None,
        )

    def on_tool(_: Any, event: Any) -> None:
        ended = report.at(event.timestamp.timestamp())
        start, fields = ended, {"arguments": event.tool_args, "agent": event.agent_role}
        if isinstance(event, ToolUsageFinishedEvent):
            start, fields["result"] = report.at(event.started_at.timestamp()), event.output
        else:
            fields |= {"result": str(event.error), "error_type": "ToolUsageError"}
        report.tool(event.tool_name, start_ms=start, end_ms=ended, **fields)

    handlers = {LLMCallStartedEvent: on_start, LLMCallCompletedEvent: on_end, LLMCallFailedEvent: on_end}
    handlers |= {ToolUsageFinishedEvent: on_tool, ToolUsageErrorEvent: on_tool}
    for kind, handler in handlers.items():
        crewai_event_bus.on(kind)(handler)
    try:
        yield
    finally:
        crewai_event_bus.flush()
        for kind, handler in handlers.items():
            crewai_event_bus.off(kind, handler)


def _parts(response: Any) -> list[dict[str, Any]]:
    if isinstance(response, str):
        return text_part(response)
    return [*openai_calls(each for each in response or () if isinstance(each, dict)).values()]
