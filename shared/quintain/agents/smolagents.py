"""Agents of smolagents."""

from __future__ import annotations

from typing import Any

from smolagents.agent_types import AgentType
from smolagents.agents import ActionOutput, ToolOutput
from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep, ToolCall

from quintain.agents import conversation


class SmolagentsConversation(conversation.Conversation):
    """Runs the agent for each turn; its memory goes on from the turn before."""

    def __init__(self, agent: Any) -> None:
        self._agent, self._is_first = agent, True

    def answer(self, turn: conversation.TurnInput, report: conversation.TurnReport) -> str:
        """Run the agent."""
        recorder = _StepRecorder(report)
        events = self._agent.run(turn.new_text, stream=True, reset=self._is_first)
        self._is_first = False
        for event in events:
            if isinstance(event, FinalAnswerStep):
                # An image or audio is a file, by its path.
                return conversation.answer_text(
                    str(event.output) if isinstance(event.output, AgentType) else event.output
                )
            recorder.record(event)
        raise conversation.AgentError("its run ended without a final answer")


class _StepRecorder:
    """Reports the steps of one run.

    A step's model call ends where the first of its tool calls begins; a step that calls none ends with it.
    """

    def __init__(self, report: conversation.TurnReport) -> None:
        self._report = report
        self._calls: dict[str, tuple[float, ToolCall]] = {}
        self._model_ended: float | None = None
        self._seen: list[ActionStep] = []
        self._tools: list[dict[str, Any]] = []

    def record(self, event: object) -> None:
        now = self._report.now()
        match event:
            case ToolCall():
                self._model_ended = self._model_ended or now
                self._calls[event.id] = (now, event)
            case ToolOutput():
                self._end_tool(event.id, result=event.observation)
            case ActionOutput():
                # Of code: its one call is the code itself.
                for call_id in list(self._calls):
                    self._end_tool(call_id, result=None if event.output is None else str(event.output))
            case PlanningStep():
                self._end_step(event, event.plan)
            case ActionStep() if not any(event is step for step in self._seen):
                self._seen.append(event)
                for call_id in list(self._calls):
                    error = None if event.error is None else type(event.error).__name__
                    result = event.observations if event.error is None else str(event.error)
                    self._end_tool(call_id, result=result, error_type=error)
                self._end_step(event, event.model_output)

    def _end_tool(self, call_id: str, **fields: Any) -> None:
        if call_id in self._calls:
            started, call = self._calls.pop(call_id)
            part = {"start_ms": started, "end_ms": self._report.now(), "arguments": call.arguments}
            self._tools.append({"name": call.name, "tool_call_id": call.id, **part, **fields})

    def _end_step(self, step: Any, said: object) -> None:
        """Report the model call of a step that has ended, and then its tools."""
        calls = [
            conversation.call_part(each.id, each.name, each.arguments)
            for each in getattr(step, "tool_calls", None) or ()
        ]
        usage = step.token_usage
        error = getattr(step, "error", None)
        started = self._report.at(step.timing.start_time)
        self._report.chat(
            [*conversation.text_part(said if isinstance(said, str) else ""), *calls],
            start_ms=started,
            end_ms=self._model_ended or self._report.now(),
            tokens=(None, None) if usage is None else (usage.input_tokens, usage.output_tokens),
            error_type=type(error).__name__ if error is not None and not self._tools else None,
        )
        for tool in self._tools:
            self._report.tool(tool.pop("name"), **tool)
        self._tools, self._model_ended = [], None
