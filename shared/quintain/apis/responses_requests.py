"""Translates requests of OpenAI's Responses API to its chat completions and back. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from quintain.apis.media import FILE_TYPES, check_data_url, file_of, file_part, image_part
from quintain.apis.translation import (
    Field,
    Json,
    Translation,
    all_objects,
    chosen_function,
    function_of,
    invalid,
    named,
    object_of,
    objects,
    settings_from_chat,
    settings_to_chat,
    text_of,
    tool_call,
)

#: What asks for the log probabilities of the answer's tokens, in ``include``.
_LOGPROBS = "message.output_text.logprobs"


def _include_to_chat(_field: str, include: list[str], translation: Translation) -> bool | None:
    for name in sorted(set(include) - {_LOGPROBS}):
        if name == "reasoning.encrypted_content":
            translation.note(f"include[{name}]")
        else:
            translation.leave_out(f"include[{name}]")
    return True if _LOGPROBS in include else None


def _include_from_chat(_field: str, logprobs: Any, _translation: Translation) -> list[str] | None:
    return [_LOGPROBS] if logprobs else None


def _format_to_chat(field: str, value: Any, _translation: Translation) -> Json | None:
    output_format = object_of(field, value)
    if output_format.get("type", "text") == "text":
        return None
    if output_format["type"] != "json_schema":
        return output_format
    return {
        "type": "json_schema",
        "json_schema": {name: output_format[name] for name in output_format if name != "type"},
    }


def _format_from_chat(field: str, value: Json, translation: Translation) -> Json | None:
    schema = value.get("json_schema")
    if value.get("type") in {"text", "json_object"}:
        return value
    if value.get("type") == "json_schema" and isinstance(schema, dict):
        return {**schema, "type": "json_schema"}
    translation.leave_out(field, 'write {"type": "json_schema", "json_schema": {"name": …, "schema": …}}')
    return None


#: The settings that both APIs have. What a conversation and its tools are is translated by itself.
FIELDS: Final = (
    *(
        Field(name, name)
        for name in ("temperature", "top_p", "top_logprobs", "parallel_tool_calls", "user", "metadata", "service_tier",
                     "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
                     "moderation", "store")
    ),
    Field("max_tokens", "max_output_tokens"),
    Field("logprobs", "include", _include_to_chat, _include_from_chat),
    Field("reasoning_effort", "reasoning.effort"),
    Field("verbosity", "text.verbosity"),
    Field("response_format", "text.format", _format_to_chat, _format_from_chat),
)  # fmt: skip


def request_to_chat(body: Json, translation: Translation) -> Json:
    """Return a Responses request as a chat request. Raises `BadRequest`, which names the field."""
    settings = {name: body[name] for name in body.keys() - {"input", "instructions", "tools", "tool_choice"}}
    if settings.get("truncation") == "disabled":
        # As in the chat API.
        del settings["truncation"]
    chat = settings_to_chat(FIELDS, settings, translation)
    if body.get("top_logprobs"):
        chat["logprobs"] = True
    return {**chat, **_tools_to_chat(body, translation), "messages": _conversation(body, translation)}


def request_from_chat(chat: Json, translation: Translation) -> Json:
    """Return a chat request as a Responses request. Raises `BadRequest`, which names the field."""
    settings = {name: chat[name] for name in chat.keys() - {"messages", "tools", "tool_choice"}}
    body = settings_from_chat(FIELDS, settings, translation)
    if chat.get("tools"):
        body["tools"] = [
            _tool_from_chat(f"tools[{index}]", tool, translation) for index, tool in enumerate(chat["tools"])
        ]
        if (choice := _choice_from_chat(chat.get("tool_choice"), body["tools"], translation)) is not None:
            body["tool_choice"] = choice
    messages = enumerate(chat["messages"])
    items = [item for index, message in messages for item in _items(f"messages[{index}]", message, translation)]
    return {**body, "input": items}


def _tools_to_chat(body: Json, translation: Translation) -> Json:
    chat: Json = {}
    if body.get("tools"):
        chat["tools"] = [_tool_to_chat(f"tools.{index}", tool, translation) for index, tool in enumerate(body["tools"])]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise invalid("tool_choice.type", "this target takes none, auto, required, or a function")
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif choice is not None:
        chat["tool_choice"] = choice
    return chat


def _tool_to_chat(path: str, tool: Any, translation: Translation) -> Json:
    if not isinstance(tool, dict) or tool.get("type") not in {"function", "custom"}:
        raise invalid(f"{path}.type", "this target takes functions")
    named(f"{path}.name", tool.get("name"))
    object_of(f"{path}.parameters", tool.get("parameters"))
    kind, fields = tool["type"], {name: value for name, value in tool.items() if name != "type" and value is not None}
    if kind == "function":
        translation.leave_out_rest(f"{path}.", fields, ("name", "description", "parameters", "strict"))
    return {"type": kind, kind: fields}


def _tool_from_chat(field: str, tool: Any, translation: Translation) -> Json:
    custom = tool.get("custom") if isinstance(tool, dict) else None
    if isinstance(custom, dict):
        return {"type": "custom", **custom}
    function = function_of(field, tool, translation)
    # ``strict`` is always set: the Responses API is strict by default, and the chat API is not.
    written = {
        "type": "function",
        "name": function["name"],
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        "strict": bool(function.get("strict")),
    }
    return written if function.get("description") is None else {**written, "description": function["description"]}


def _choice_from_chat(choice: Any, tools: list[Json], translation: Translation) -> Any:
    if choice is None or choice in ("none", "auto", "required"):
        return choice
    name = chosen_function(choice, tools, translation)
    return None if name is None else {"type": "function", "name": name}


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
        translation.leave_out_rest(f"{path}.", item, ("type", "id", "role", "content", "status"))
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
    parts = [_part_to_chat(f"{path}.{at}", part, translation) for at, part in enumerate(all_objects(path, content))]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    # One text is written as such: that is how an answer comes back, and every target takes it.
    return str(texts[0]) if len(parts) == len(texts) == 1 else parts


def _part_to_chat(path: str, part: Json, translation: Translation) -> Json:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        if not isinstance(part.get("text"), str):
            raise invalid(f"{path}.text", "it is a text")
        translation.leave_out_rest(f"{path}.", part, ("type", "text", "logprobs"))
        if part.get("logprobs"):
            translation.note(f"{path}.logprobs")
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


_MESSAGE_FIELDS = (
    "role", "content", "tool_call_id", "tool_calls", "refusal", "name", "is_error", "thinking_blocks",
    "reasoning_content", "reasoning",
)  # fmt: skip


def _items(field: str, message: Json, translation: Translation) -> Iterator[Json]:
    role, content = message["role"], message.get("content")
    if message.get("name") is not None:
        translation.leave_out(f"{field}.name")
    translation.leave_out_rest(f"{field}.", message, _MESSAGE_FIELDS)
    if message.get("thinking_blocks") or message.get("reasoning_content"):
        translation.note("messages.reasoning")
    if message.get("is_error"):
        translation.note("messages.is_error")
    if message.get("refusal") and message.get("content"):
        translation.leave_out(f"{field}.refusal")
    if role == "tool":
        _check_parts(f"{field}.content", content, translation)
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": text_of(content)}
    elif role == "assistant":
        _check_parts(f"{field}.content", content, translation)
        yield from _assistant_items(field, message)
    elif isinstance(content, str):
        yield {"role": role, "content": content}
    else:
        parts = enumerate(content if isinstance(content, list) else ())
        yield {
            "role": role,
            "content": [_part_from_chat(f"{field}.content[{at}]", part, translation) for at, part in parts],
        }


def _check_parts(field: str, content: object, translation: Translation) -> None:
    for index, part in enumerate(objects(content)):
        translation.leave_out_rest(f"{field}[{index}].", part, ("type", "text", "refusal"))


def _assistant_items(field: str, message: Json) -> Iterator[Json]:
    calls = message.get("tool_calls") or []
    refusals = "".join(str(part.get("refusal") or "") for part in objects(message.get("content")))
    text = text_of(message.get("content")) or refusals or message.get("refusal") or ""
    if text or not calls:
        yield {"role": "assistant", "content": text}
    for at, call in enumerate(calls):
        function = call.get("function")
        if not isinstance(function, dict):
            raise invalid(f"{field}.tool_calls[{at}]", "this target takes functions only")
        arguments = function.get("arguments")
        yield {
            "type": "function_call",
            "call_id": call.get("id"),
            "name": function.get("name"),
            "arguments": arguments,
        }


def _part_from_chat(field: str, part: Any, translation: Translation) -> Json:
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        translation.leave_out_rest(f"{field}.", part, ("type", "text"))
        return {"type": "input_text", "text": part["text"]}
    if kind == "image_url":
        image = image_part(field, part, translation)
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
    if kind == "file":
        file = file_of(field, part, translation)
        check_data_url(f"{field}.file.file_data", file["file_data"], FILE_TYPES)
        return {"type": "input_file", **{name: value for name, value in file.items() if value is not None}}
    raise invalid(field, "this target takes text, image_url and file parts only")
