"""What was said and which tools were called, as AgentV's graders read it: events in their order, and their sums. Pure.

A target's tools run where nobody here sees it: of a call its name and its input are known, and neither its output, its
end nor its duration. Its status is therefore AgentV's word ``unknown``, and no error is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

from pydantic import JsonValue

JsonObject = dict[str, JsonValue]

#: What the first era's summary tells beside the sums.
_SUMMED_UP = ("token_usage", "cost_usd", "duration_ms")


def trace_of(transcript: Sequence[JsonObject], answer: str, known: JsonObject) -> JsonObject:
    """The trace of a conversation that ended with this answer; ``known`` is what else is known of it."""
    events = [{**event, "ordinal": ordinal} for ordinal, event in zip(count(), _events(transcript, answer))]
    return {**_sums(transcript), "messages": [*transcript], "events": [*events], **known}


def summary_of(transcript: Sequence[JsonObject], known: JsonObject) -> JsonObject:
    """The sums of a conversation, in the words of every era."""
    calls = _counted(transcript)
    told = {name: known[name] for name in _SUMMED_UP if name in known}
    return {**_sums(transcript), "tool_names": [*sorted(calls)], "tool_calls_by_name": dict(calls), **told}


def _sums(transcript: Sequence[JsonObject]) -> JsonObject:
    calls = _counted(transcript)
    return {
        "event_count": calls.total(),
        "tool_calls": dict(calls),
        "error_count": 0,
        "llm_call_count": sum(message["role"] == "assistant" for message in transcript),
    }


def _counted(transcript: Sequence[JsonObject]) -> Counter[str]:
    return Counter(str(call["tool"]) for message in transcript for call in _calls(message))


def _events(transcript: Sequence[JsonObject], answer: str) -> Iterator[JsonObject]:
    last: tuple[int, JsonObject] | None = None
    for index, message in enumerate(transcript):
        yield _message(f"message-{index}", index, message["role"], message["content"])
        for number, call in enumerate(_calls(message)):
            yield _call(index, number, call)
        if message["role"] == "assistant":
            last = index, message
    if last is not None:
        index, message = last
        final = _message("final-response", index, message["role"], answer)
        yield {**final, "type": "final_response", "parent_event_id": f"message-{index}"}


def _message(event_id: str, index: int, role: JsonValue, content: JsonValue) -> JsonObject:
    return {
        "event_id": event_id,
        "type": "message",
        "message": {"role": role, "content": content},
        "metadata": {"message_index": index},
    }


def _call(index: int, number: int, call: JsonObject) -> JsonObject:
    return {
        "event_id": f"message-{index}-tool-{number}",
        "parent_event_id": f"message-{index}",
        "type": "tool_call",
        "tool": {"name": call["tool"], "call_id": call["id"], "input": call["input"], "status": "unknown"},
        "metadata": {"message_index": index, "tool_index": number},
    }


def _calls(message: JsonObject) -> list[JsonObject]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
