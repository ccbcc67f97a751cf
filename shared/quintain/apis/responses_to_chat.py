"""Translates requests of OpenAI's Responses API to its chat completions. No I/O."""

from __future__ import annotations

from typing import Any

from quintain.apis.media import file_part
from quintain.apis.responses_from_chat import LOGPROBS, SAME
from quintain.apis.translation import (
    Json,
    Translation,
    all_objects,
    invalid,
    named,
    object_of,
    objects,
    text_of,
    tool_call,
)

_TRANSLATED = (
    "input", "instructions", "max_output_tokens", "include", "reasoning", "text", "tools", "tool_choice", "truncation",
)  # fmt: skip


def request_to_chat(body: Json, translation: Translation) -> Json:
    """Return a Responses request as a chat request. Raises `BadRequest`, which names the field."""
    chat: Json = {name: body[name] for name in SAME if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    include = set(body.get("include") or ())
    if LOGPROBS in include or body.get("top_logprobs"):
        chat["logprobs"] = True
    if "reasoning.encrypted_content" in include:
        translation.note("include[reasoning.encrypted_content]")
    for name in sorted(include - {LOGPROBS, "reasoning.encrypted_content"}):
        translation.leave_out(f"include[{name}]")
    if body.get("truncation") not in {None, "disabled"}:
        translation.leave_out("truncation")
    chat |= _output(body, translation) | _tools(body, translation)
    translation.leave_out_rest("", body, {*SAME, *_TRANSLATED})
    return {**chat, "messages": _conversation(body, translation)}


def _output(body: Json, translation: Translation) -> Json:
    """Return how the model is to think and write."""
    chat: Json = {}
    reasoning, text = (object_of(name, body.get(name)) for name in ("reasoning", "text"))
    if reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    translation.note_given("reasoning.", reasoning, ("summary", "generate_summary"))
    translation.leave_out_rest("reasoning.", reasoning, ("effort", "summary", "generate_summary"))
    if text.get("verbosity") is not None:
        chat["verbosity"] = text["verbosity"]
    if (output_format := object_of("text.format", text.get("format"))).get("type", "text") != "text":
        schema = {name: value for name, value in output_format.items() if name != "type"}
        is_schema = output_format.get("type") == "json_schema"
        chat["response_format"] = {"type": "json_schema", "json_schema": schema} if is_schema else output_format
    translation.leave_out_rest("text.", text, ("verbosity", "format"))
    return chat


def _tools(body: Json, translation: Translation) -> Json:
    chat: Json = {}
    if body.get("tools"):
        chat["tools"] = [_tool(f"tools.{index}", tool, translation) for index, tool in enumerate(body["tools"])]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise invalid("tool_choice.type", "this target takes none, auto, required, or a function")
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif choice is not None:
        chat["tool_choice"] = choice
    return chat


def _tool(path: str, tool: Any, translation: Translation) -> Json:
    if not isinstance(tool, dict) or tool.get("type") not in {"function", "custom"}:
        raise invalid(f"{path}.type", "this target takes functions")
    named(f"{path}.name", tool.get("name"))
    object_of(f"{path}.parameters", tool.get("parameters"))
    kind, fields = tool["type"], {name: value for name, value in tool.items() if name != "type" and value is not None}
    if kind == "function":
        translation.leave_out_rest(f"{path}.", fields, ("name", "description", "parameters", "strict"))
    return {"type": kind, kind: fields}


def _conversation(body: Json, translation: Translation) -> list[Json]:
    found: list[tuple[str, Json]] = []
    if body.get("instructions") is not None:
        found.append(("instructions", {"role": "system", "content": body["instructions"]}))
    if isinstance(body.get("input"), str):
        found.append(("input", {"role": "user", "content": body["input"]}))
    for index, item in enumerate(objects(body.get("input"))):
        if (message := _message(f"input.{index}", item, translation)) is not None:
            _join(found, f"input.{index}", message)
    for _, message in found:
        if message.get("tool_calls"):
            message["content"] = message["content"] or None
    translation.places = [place for place, _ in found]
    return [message for _, message in found]


def _join(found: list[tuple[str, Json]], place: str, message: Json) -> None:
    """Add a message; text and calls of the assistant that follow each other are one."""
    last = found[-1][1] if found else {}
    is_next = last.get("role") == message["role"] == "assistant"
    if is_next and "tool_calls" in message and not message["content"]:
        last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]
    elif is_next and message["content"] and not last["content"] and "tool_calls" not in last:
        found[-1] = (place, message)
    else:
        found.append((place, message))


def _message(path: str, item: Json, translation: Translation) -> Json | None:
    kind = item.get("type", "message")
    if kind == "message":
        translation.leave_out_rest(f"{path}.", item, ("type", "id", "role", "content", "status", "phase"))
        translation.note_given(f"{path}.", item, ("phase",))
        role = "system" if item.get("role") == "developer" else item.get("role")
        if role not in {"system", "user", "assistant"}:
            raise invalid(f"{path}.role", "write system, developer, user or assistant")
        content = _content(f"{path}.content", item.get("content"), translation)
        return {"role": role, "content": text_of(content) if role == "assistant" else content}
    if kind == "function_call":
        translation.leave_out_rest(f"{path}.", item, ("type", "id", "call_id", "name", "arguments", "status"))
        call = tool_call(named(f"{path}.call_id", item.get("call_id")), item.get("name"), item.get("arguments"))
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        translation.leave_out_rest(f"{path}.", item, ("type", "id", "call_id", "output", "status"))
        if not item.get("call_id"):
            raise invalid(f"{path}.call_id", "it names the call that it answers")
        content = _content(f"{path}.output", item.get("output"), translation)
        return {"role": "tool", "tool_call_id": item["call_id"], "content": content}
    if kind == "reasoning":
        translation.note("messages.reasoning")
        return None
    raise invalid(f"{path}.type", "this target takes message, function_call, function_call_output and reasoning")


def _content(path: str, content: object, translation: Translation) -> str | list[Json]:
    if isinstance(content, str):
        return content
    parts = [_part(f"{path}.{at}", part, translation) for at, part in enumerate(all_objects(path, content))]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    # One text is written as such: that is how an answer comes back, and every target takes it.
    return str(texts[0]) if len(parts) == len(texts) == 1 else parts


def _part(path: str, part: Json, translation: Translation) -> Json:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        if not isinstance(part.get("text"), str):
            raise invalid(f"{path}.text", "it is a text")
        translation.note_given(f"{path}.", part, ("annotations", "logprobs"))
        translation.leave_out_rest(f"{path}.", part, ("type", "text", "annotations", "logprobs"))
        return {"type": "text", "text": part["text"]}
    if kind == "refusal":
        return {"type": "text", "text": str(part.get("refusal") or "")}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        translation.leave_out_rest(f"{path}.", part, ("type", "image_url", "detail"))
        detail = {} if part.get("detail") is None else {"detail": part["detail"]}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        translation.leave_out_rest(f"{path}.", part, ("type", "file_data", "filename"))
        return file_part(part["file_data"], part.get("filename"))
    if kind == "input_file":
        raise invalid(f"{path}.file_data", "this target takes files in the message: data:application/pdf;base64,…")
    raise invalid(f"{path}.type", "this target takes input_text, input_image, input_file and output_text")
