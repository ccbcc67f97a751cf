"""Agents of pydantic-ai."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, FunctionToolCallEvent, FunctionToolResultEvent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)

from quintain.agents import conversation


class PydanticAIConversation(conversation.Conversation):
    """Runs the agent for each turn, with the messages of the turns before."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._messages: list[ModelMessage] = []

    async def answer(self, turn: conversation.TurnInput, report: conversation.TurnReport) -> str:
        """Run the agent."""
        *before, last = turn.new_messages
        history = [*self._messages, *map(_message, before)]
        started = report.now()
        async with self._agent.iter(last["content"], message_history=history or None) as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    started = report.now()
                elif Agent.is_call_tools_node(node):
                    _report_response(node.model_response, started, report)
                    await _run_tools(node, run, report)
        if run.result is None:
            raise conversation.AgentError("its run ended without a result")
        self._messages = run.result.all_messages()
        return conversation.answer_text(run.result.output)


async def _run_tools(node: Any, run: Any, report: conversation.TurnReport) -> None:
    calls: dict[str, tuple[float, ToolCallPart]] = {}
    async with node.stream(run.ctx) as events:
        async for event in events:
            if isinstance(event, FunctionToolCallEvent):
                calls[event.part.tool_call_id] = (report.now(), event.part)
            elif isinstance(event, FunctionToolResultEvent):
                call_id = event.part.tool_call_id
                started, call = calls[call_id]
                report.tool(
                    call.tool_name,
                    start_ms=started,
                    end_ms=report.now(),
                    arguments=call.args,
                    result=event.part.content,
                    tool_call_id=call_id,
                    error_type=None if event.part.outcome == "success" else event.part.outcome,
                )


def _report_response(response: ModelResponse, started: float, report: conversation.TurnReport) -> None:
    parts: list[dict[str, Any]] = []
    for part in response.parts:
        match part:
            case TextPart():
                parts += conversation.text_part(part.content)
            case ThinkingPart():
                parts += conversation.reasoning_part(part.content)
            case ToolCallPart():
                parts.append(conversation.call_part(part.tool_call_id, part.tool_name, part.args))
    usage = response.usage
    tokens = (usage.input_tokens, usage.output_tokens) if usage.has_values() else (None, None)
    report.chat(parts, start_ms=started, end_ms=report.now(), tokens=tokens, model=response.model_name)


def _message(message: dict[str, Any]) -> ModelMessage:
    text = message["content"]
    if message["role"] == "assistant":
        return ModelResponse(parts=[TextPart(text)])
    return ModelRequest(parts=[SystemPromptPart(text) if message["role"] == "system" else UserPromptPart(text)])
