"""Inspect's agents, run by `inspect_ai.agent.run`."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

from inspect_ai import Task, eval_async
from inspect_ai.agent import AgentState, run
from inspect_ai.dataset import Sample
from inspect_ai.event import ModelEvent, ToolEvent
from inspect_ai.log import transcript
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageSystem, ChatMessageUser
from inspect_ai.solver import Generate, Solver, TaskState, solver

from quintain.agents import conversation

_KINDS = {"assistant": ChatMessageAssistant, "system": ChatMessageSystem, "user": ChatMessageUser}


class InspectConversation(conversation.Conversation):
    """Runs the agent for each turn, with the messages of the turns before.

    Each run is in a sample, without which Inspect's own agents do not run; its log is not kept.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._messages: list[ChatMessage] = []

    async def answer(self, turn: conversation.TurnInput, report: conversation.TurnReport) -> str:
        """Run the agent."""
        new = [_KINDS[message["role"]](content=message["content"]) for message in turn.new_messages]
        ended: list[AgentState | Exception] = []

        @solver  # type: ignore[untyped-decorator]
        def one_turn() -> Solver:
            async def solve(state: TaskState, generate: Generate) -> TaskState:
                try:
                    ended.append(await run(self._agent, [*self._messages, *new]))
                except Exception as error:
                    ended.append(error)
                for event in list(transcript().events):
                    _report_event(event, report)
                return state

            return solve

        with TemporaryDirectory(prefix="quintain-", ignore_cleanup_errors=True) as folder:
            task = Task(dataset=[Sample(input=turn.prompt)], solver=one_turn())
            (log,) = await eval_async(task, log_dir=folder, log_samples=False, log_realtime=False)
        if not ended:
            raise conversation.AgentError(f"it was not run: {'no sample' if log.error is None else log.error.message}")
        if isinstance(ended[0], Exception):
            raise ended[0]
        self._messages = ended[0].messages
        return conversation.answer_text(ended[0].output.completion)


def _report_event(event: Any, report: conversation.TurnReport) -> None:
    if not isinstance(event, ModelEvent | ToolEvent):
        return
    ended = None if event.completed is None else report.at(event.completed.timestamp())
    times: Any = {"start_ms": report.at(event.timestamp.timestamp()), "end_ms": ended}
    if isinstance(event, ToolEvent):
        error = None if event.error is None else event.error.type
        result: Any = event.result if event.error is None else event.error.message
        values = {"arguments": event.arguments, "result": result, "tool_call_id": event.id, "error_type": error}
        report.tool(event.function, **times, **values)
        return
    tokens: Any = (None, None)
    if (usage := event.output.usage) is not None:
        # Inspect counts the input's tokens in the provider's cache apart.
        cached = (usage.input_tokens_cache_read or 0) + (usage.input_tokens_cache_write or 0)
        tokens = (usage.input_tokens + cached, usage.output_tokens)
    report.chat(
        _parts(event.output.message) if event.output.choices else [],
        **times,
        tokens=tokens,
        model=event.output.model or event.model,
        error_type=None if event.error is None else "ModelError",
    )


def _parts(message: Any) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in [message.content] if isinstance(message.content, str) else message.content:
        parts += conversation.text_part(part if isinstance(part, str) else getattr(part, "text", ""))
        parts += conversation.reasoning_part(getattr(part, "reasoning", ""))
    return [
        *parts,
        *(conversation.call_part(call.id, call.function, call.arguments) for call in message.tool_calls or ()),
    ]
