"""Agents of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import Any

from agents import RunHooks, Runner

from quintain.agents import conversation


class OpenAIAgentConversation(conversation.Conversation):
    """Runs the agent for each turn, or the one that took over, with the items of the turns before."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._items: list[Any] = []

    async def answer(self, turn: conversation.TurnInput, report: conversation.TurnReport) -> str:
        """Run the agent."""
        result = await Runner.run(self._agent, [*self._items, *turn.new_messages], hooks=_RunRecorder(report))
        self._items, self._agent = result.to_input_list(), result.last_agent
        return conversation.answer_text(result.final_output)


class _RunRecorder(RunHooks[Any]):
    def __init__(self, report: conversation.TurnReport) -> None:
        self._report = report
        self._model_started = 0.0
        self._tools_started: dict[str | None, float] = {}

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        self._model_started = self._report.now()

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self._report.chat(
            [part for item in response.output for part in _parts(item)],
            start_ms=self._model_started,
            end_ms=self._report.now(),
            tokens=(response.usage.input_tokens, response.usage.output_tokens),
            agent=agent.name,
            model=agent.model if isinstance(agent.model, str) else None,
        )

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self._tools_started[getattr(context, "tool_call_id", None)] = self._report.now()

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        call_id = getattr(context, "tool_call_id", None)
        self._report.tool(
            tool.name,
            start_ms=self._tools_started.pop(call_id, self._report.now()),
            end_ms=self._report.now(),
            arguments=getattr(context, "tool_arguments", None),
            result=result,
            tool_call_id=call_id,
            agent=agent.name,
        )

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        self._report.handoff(to_agent.name)


def _parts(item: Any) -> list[dict[str, Any]]:
    """The parts of one item of a response; items that are not shown, such as the vendor's own tools, by their type."""
    match item.type:
        case "message":
            return conversation.text_part(
                "".join(getattr(part, "text", "") or getattr(part, "refusal", "") for part in item.content)
            )
        case "reasoning":
            return conversation.reasoning_part("".join(part.text for part in item.summary or ()))
        case "function_call":
            return [conversation.call_part(item.call_id, item.name, item.arguments)]
    return [conversation.call_part(getattr(item, "id", None), item.type, item)]
