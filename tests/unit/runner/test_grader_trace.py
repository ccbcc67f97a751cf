"""A conversation as AgentV's trace. What is expected here was measured: AgentV 4.42.4 on the same conversation."""

from __future__ import annotations

from quintain_runner.graders.input import JsonObject, build_trace, build_trace_summary

CALLS: JsonObject = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"tool": "look", "input": {"a": number}, "id": f"c{number}"} for number in (1, 2)],
}
CONVERSATION: list[JsonObject] = [
    {"role": "user", "content": "capital?"},
    CALLS,
    {"role": "assistant", "content": [{"type": "text", "text": "Paris"}]},
]


def message(index: int, role: str, content: object) -> dict[str, object]:
    """An event of a message, but for its place."""
    return {
        "event_id": f"message-{index}",
        "type": "message",
        "message": {"role": role, "content": content},
        "metadata": {"message_index": index},
    }


def call(number: int) -> dict[str, object]:
    """An event of the second message's call, but for its place."""
    return {
        "event_id": f"message-1-tool-{number - 1}",
        "parent_event_id": "message-1",
        "type": "tool_call",
        # AgentV says "ok" of a call of which it knows no more.
        "tool": {"name": "look", "call_id": f"c{number}", "input": {"a": number}, "status": "unknown"},
        "metadata": {"message_index": 1, "tool_index": number - 1},
    }


EVENTS = [
    message(0, "user", "capital?"),
    message(1, "assistant", ""),
    call(1),
    call(2),
    message(2, "assistant", [{"type": "text", "text": "Paris"}]),
    message(2, "assistant", "Paris")
    | {"event_id": "final-response", "parent_event_id": "message-2", "type": "final_response"},
]

SUMS = {"event_count": 2, "tool_calls": {"look": 2}, "error_count": 0, "llm_call_count": 2}


def test_a_trace_has_every_message_and_call_in_order() -> None:
    assert build_trace(CONVERSATION, "Paris", {"duration_ms": 322}) == {
        **SUMS,
        "messages": CONVERSATION,
        "events": [{**event, "ordinal": ordinal} for ordinal, event in enumerate(EVENTS)],
        "duration_ms": 322,
    }


def test_a_summary_has_the_words_of_the_first_era_too() -> None:
    first = {"tool_names": ["look"], "tool_calls_by_name": {"look": 2}, "token_usage": {"input": 3, "output": 4}}
    known: JsonObject = {"token_usage": {"input": 3, "output": 4}, "start_time": "2026-03-01T11:59:59.000Z"}
    assert build_trace_summary(CONVERSATION, known) == {**SUMS, **first}


def test_a_conversation_that_nobody_answered_ends_without_a_response() -> None:
    trace = build_trace(CONVERSATION[:1], "", {})
    assert trace["events"] == [message(0, "user", "capital?") | {"ordinal": 0}]
    assert (trace["event_count"], trace["tool_calls"], trace["llm_call_count"]) == (0, {}, 0)
