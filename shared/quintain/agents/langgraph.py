"""LangGraph's graphs, and so LangChain's agents, which are graphs with ``messages`` in their state."""

from __future__ import annotations

import uuid
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.types import Command

from quintain.agents import conversation
from quintain.errors import ConfigError


class LangGraphConversation(conversation.Conversation):
    """Runs a graph for each turn: with its checkpointer in a thread of its own, without one with all messages.

    A graph that interrupts itself answers what it asks, and the next turn resumes it.
    """

    def __init__(self, graph: Any) -> None:
        if "messages" not in graph.channels:
            raise ConfigError("its state has no `messages`; put a function before it, which takes the prompt")
        self._graph, self._thread = graph, uuid.uuid4().hex
        self._keeps_state = bool(graph.checkpointer)
        self._messages: list[Any] = []
        self._is_interrupted = False

    async def answer(self, turn: conversation.TurnInput, report: conversation.TurnReport) -> str:
        """Run the graph."""
        config = {"callbacks": [_GraphRecorder(report)], "configurable": {"thread_id": self._thread}}
        new = {"messages": [*self._messages, *turn.new_messages]}
        given = Command(resume=turn.prompt) if self._is_interrupted else new
        values = await self._graph.ainvoke(given, config)
        self._messages = [] if self._keeps_state else values["messages"]
        interrupts = values.get("__interrupt__") or ()
        self._is_interrupted = bool(interrupts) and self._keeps_state
        last = values["messages"][-1]
        text = conversation.message_text(last if isinstance(last, dict) else {"content": last.content})
        return conversation.answer_text(interrupts[0].value) if interrupts else text


class _GraphRecorder(BaseCallbackHandler):
    """Reports model and tool calls, of subgraphs too."""

    run_inline = True

    def __init__(self, report: conversation.TurnReport) -> None:
        self._report = report
        self._started: dict[Any, tuple[float, str, Any]] = {}

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **_: Any) -> None:
        self.on_llm_start(serialized, messages, run_id=run_id)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: Any, **_: Any) -> None:
        self._started[run_id] = (self._report.now(), "", None)

    def on_llm_end(self, response: Any, *, run_id: Any, **_: Any) -> None:
        generation = response.generations[0][0]
        message = getattr(generation, "message", None)
        usage = getattr(message, "usage_metadata", None) or {}
        calls = [
            conversation.call_part(each["id"], each["name"], each["args"])
            for each in getattr(message, "tool_calls", ())
        ]
        self._report.chat(
            [*conversation.text_part(generation.text), *calls],
            start_ms=self._begun(run_id)[0],
            end_ms=self._report.now(),
            tokens=(usage.get("input_tokens"), usage.get("output_tokens")),
            model=(getattr(message, "response_metadata", None) or {}).get("model_name"),
        )

    def on_llm_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        started = self._begun(run_id)[0]
        self._report.chat([], start_ms=started, end_ms=self._report.now(), error_type=type(error).__name__)

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: Any, inputs: Any = None, **_: Any) -> None:
        name = (serialized or {}).get("name") or "tool"
        self._started[run_id] = (self._report.now(), name, input_str if inputs is None else inputs)

    def on_tool_end(self, output: Any, *, run_id: Any, **_: Any) -> None:
        call_id = getattr(output, "tool_call_id", None)
        result = getattr(output, "content", output)
        self._end_tool(run_id, result=result, tool_call_id=call_id)

    def on_tool_error(self, error: BaseException, *, run_id: Any, tool_call_id: str | None = None, **_: Any) -> None:
        self._end_tool(run_id, result=str(error), tool_call_id=tool_call_id, error_type=type(error).__name__)

    def _end_tool(self, run_id: Any, **fields: Any) -> None:
        started, name, arguments = self._begun(run_id)
        self._report.tool(name, start_ms=started, end_ms=self._report.now(), arguments=arguments, **fields)

    def _begun(self, run_id: Any) -> tuple[float, str, Any]:
        return self._started.pop(run_id, (self._report.now(), "tool", None))
