"""What a target did, as graders, pages and exports get it: its own steps, or those that its messages say. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import OutputMessage, Result

#: The finish reason of a model that called tools, in the words of OpenTelemetry.
_FINISH_REASONS: Final = {"tool_calls": "tool_call"}

Json = dict[str, Any]


def steps_of(result: Result) -> list[AgentStep]:
    """Return the steps of an answer.

    Where a model reasoned or called tools, its messages say so: they become steps of operation ``chat``, unless the
    target told its own. An answer that is only text has none.
    """
    given = result.steps or []
    said = result.output
    if any(step.operation == "chat" for step in given) or not any(one.tool_calls or one.reasoning for one in said):
        return given
    usage = result.token_usage if len(said) == 1 else None
    finish_reason = _FINISH_REASONS.get(result.finish_reason or "", result.finish_reason or "stop")
    chats = [
        AgentStep(
            operation="chat",
            model=result.model,
            messages=[{"role": message.role, "parts": list(_parts(message)), "finish_reason": finish_reason}],
            duration_ms=float(result.duration_ms) if len(said) == 1 else None,
            input_tokens=None if usage is None else usage.input,
            output_tokens=None if usage is None else usage.output,
        )
        for message in said
    ]
    return [*given, *chats]


def _parts(message: OutputMessage) -> Iterator[Json]:
    for thought in message.reasoning or ():
        yield {"type": "reasoning", "content": thought.text, **({} if thought.redacted is None else {"redacted": True})}
    if isinstance(message.content, str):
        if message.content:
            yield {"type": "text", "content": message.content}
    else:
        yield from (_content_part(part) for part in message.content)
    for call in message.tool_calls or ():
        yield {"type": "tool_call", "id": call.id, "name": call.name, "arguments": parsed(call.arguments)}


def _content_part(part: Json) -> Json:
    text = part.get("text")
    return {"type": "text", "content": text} if isinstance(text, str) else {"type": "other", **part}


def parsed(text: str) -> Any:
    """Return the JSON that a text is, or the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
