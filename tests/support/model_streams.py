"""What model providers stream: the server-sent events of the three wires, in their documentation's order and words.

A wire's ``…_events`` stream a text in pieces; its ``…_call_events`` stream calls of tools, their arguments in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

#: One call of a tool on its way: its id, its name, and its arguments in the pieces they come in.
StreamedCall = tuple[str, str, Sequence[str]]

CHAT_USAGE: dict[str, object] = {
    "prompt_tokens": 21,
    "completion_tokens": 9,
    "total_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def event(data: object, name: str | None = None) -> bytes:
    """One event, named or not; data that is no text is sent as JSON."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def chat_events(parts: Sequence[str]) -> list[bytes]:
    """A chat completion: role, text, reason, then the usage that ``stream_options`` ask for, then the end."""
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"content": part} for part in parts]
    return _chat(deltas, "stop")


def chat_call_events(calls: Sequence[StreamedCall]) -> list[bytes]:
    """A chat completion that calls tools: what is known of a call comes first, its arguments after it."""
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": None}]
    for index, (call_id, name, parts) in enumerate(calls):
        function = {"name": name, "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in parts]
    return _chat(deltas, "tool_calls")


def chat_refusal_events(parts: Sequence[str]) -> list[bytes]:
    """A chat completion that refuses: the refusal comes in place of text."""
    return _chat([{"role": "assistant", "content": None}, *({"refusal": part} for part in parts)], "stop")


def chat_reasoning_events(reasoning: Sequence[str], parts: Sequence[str]) -> list[bytes]:
    """A chat completion that begins with the model's reasoning, as vLLM and DeepSeek send it."""
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in reasoning]
    return _chat([*deltas, *({"content": part} for part in parts)], "stop")


def _chat(deltas: Sequence[dict[str, object]], reason: str) -> list[bytes]:
    def chunk(choices: list[dict[str, object]], usage: object = None) -> bytes:
        whole = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "served-2026-01-01"}
        return event({**whole, "choices": choices, "usage": usage})

    def choice(delta: dict[str, object], finish_reason: str | None = None) -> list[dict[str, object]]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]

    chunks = [chunk(choice(delta)) for delta in deltas]
    return [*chunks, chunk(choice({}, reason)), chunk([], CHAT_USAGE), event("[DONE]")]


def anthropic_events(parts: Sequence[str]) -> list[bytes]:
    """A message of Anthropic's with one block of text."""
    deltas = [{"type": "text_delta", "text": part} for part in parts]
    return _anthropic([({"type": "text", "text": ""}, deltas)], "end_turn")


def anthropic_thinking_events(thinking: Sequence[str], signature: str, redacted: str, text: str) -> list[bytes]:
    """A message of Anthropic's with a block of thinking, one that only Anthropic reads, and one of text."""
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in thinking]
    signed = [*deltas, {"type": "signature_delta", "signature": signature}]
    return _anthropic(
        [
            ({"type": "thinking", "thinking": "", "signature": ""}, signed),
            ({"type": "redacted_thinking", "data": redacted}, []),
            ({"type": "text", "text": ""}, [{"type": "text_delta", "text": text}]),
        ],
        "end_turn",
    )


def anthropic_call_events(calls: Sequence[StreamedCall]) -> list[bytes]:
    """A message of Anthropic's that calls tools, one block each."""
    blocks = [
        (
            {"type": "tool_use", "id": call_id, "name": name, "input": {}},
            [{"type": "input_json_delta", "partial_json": part} for part in ("", *parts)],
        )
        for call_id, name, parts in calls
    ]
    return _anthropic(blocks, "tool_use")


def _anthropic(blocks: Sequence[tuple[dict[str, object], list[dict[str, str]]]], reason: str) -> list[bytes]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "served-2026-01-01",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 17, "cache_read_input_tokens": 4, "output_tokens": 1},
    }
    events = [_named("message_start", message=message), _named("ping")]
    for index, (block, deltas) in enumerate(blocks):
        events.append(_named("content_block_start", index=index, content_block=block))
        events += [_named("content_block_delta", index=index, delta=delta) for delta in deltas]
        events.append(_named("content_block_stop", index=index))
    ending = {"stop_reason": reason, "stop_sequence": None}
    return [*events, _named("message_delta", delta=ending, usage={"output_tokens": 9}), _named("message_stop")]


def responses_events(parts: Sequence[str]) -> list[bytes]:
    """An answer of the Responses API with one message."""
    text = "".join(parts)
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": text, "annotations": []}
    done = {**item, "status": "completed", "content": [part]}
    events: list[tuple[str, dict[str, object]]] = [
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.content_part.added", {**at, "part": {**part, "text": ""}}),
        *(("response.output_text.delta", {**at, "delta": text_part, "logprobs": []}) for text_part in parts),
        ("response.output_text.done", {**at, "text": text, "logprobs": []}),
        ("response.content_part.done", {**at, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": done}),
    ]
    return _responses(events, [done])


def responses_reasoning_events(summaries: Sequence[Sequence[str]], encrypted: str) -> list[bytes]:
    """An answer of the Responses API with a reasoning item, each of whose summaries comes in these pieces."""
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": None}
    events: list[tuple[str, dict[str, object]]] = [
        ("response.output_item.added", {"output_index": 0, "item": {**item, "summary": []}})
    ]
    for index, pieces in enumerate(summaries):
        at = {"item_id": "rs_1", "output_index": 0, "summary_index": index}
        part = {"type": "summary_text", "text": "".join(pieces)}
        events += [
            ("response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}),
            *(("response.reasoning_summary_text.delta", {**at, "delta": piece}) for piece in pieces),
            ("response.reasoning_summary_text.done", {**at, "text": part["text"]}),
            ("response.reasoning_summary_part.done", {**at, "part": part}),
        ]
    summary = [{"type": "summary_text", "text": "".join(pieces)} for pieces in summaries]
    done = {**item, "summary": summary, "encrypted_content": encrypted}
    return _responses([*events, ("response.output_item.done", {"output_index": 0, "item": done})], [done])


def responses_call_events(calls: Sequence[StreamedCall]) -> list[bytes]:
    """An answer of the Responses API that calls tools, one item each."""
    events: list[tuple[str, dict[str, object]]] = []
    output: list[dict[str, object]] = []
    for index, (call_id, name, parts) in enumerate(calls):
        whole = "".join(parts)
        item = {"type": "function_call", "id": f"fc_{index}", "call_id": call_id, "name": name}
        at = {"item_id": f"fc_{index}", "output_index": index}
        output.append({**item, "arguments": whole, "status": "completed"})
        events += [
            ("response.output_item.added", {"output_index": index, "item": {**item, "arguments": ""}}),
            *(("response.function_call_arguments.delta", {**at, "delta": part}) for part in parts),
            ("response.function_call_arguments.done", {**at, "name": name, "arguments": whole}),
            ("response.output_item.done", {"output_index": index, "item": output[-1]}),
        ]
    return _responses(events, output)


def _responses(events: Sequence[tuple[str, dict[str, object]]], output: list[dict[str, object]]) -> list[bytes]:
    started: dict[str, object] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "served-2026-01-01",
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    usage = {
        "input_tokens": 21,
        "output_tokens": 9,
        "total_tokens": 30,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    completed = {**started, "status": "completed", "output": output, "usage": usage}
    all_events = [
        ("response.created", {"response": started}),
        ("response.in_progress", {"response": started}),
        *events,
        ("response.completed", {"response": completed}),
    ]
    return list(_numbered(all_events))


def _numbered(events: Sequence[tuple[str, dict[str, object]]]) -> Iterator[bytes]:
    for number, (name, data) in enumerate(events):
        yield _named(name, sequence_number=number, **data)


def _named(kind: str, /, **data: object) -> bytes:
    return event({"type": kind, **data}, kind)
