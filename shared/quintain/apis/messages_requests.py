"""Translates requests of Anthropic's messages to OpenAI's chat completions and back. No I/O."""

from __future__ import annotations

import json
from typing import Any, Final

from quintain.apis.answer_json import parse_object
from quintain.apis.media import document_of, file_part, image_part, image_source
from quintain.apis.messages import reasoning_text
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
    tool_call,
)


def _stop_to_chat(field: str, value: Any, _translation: Translation) -> list[Any]:
    if not isinstance(value, list):
        raise invalid(field, "it is a list of texts")
    return value


def _stop_from_chat(_field: str, stop: Any, _translation: Translation) -> list[Any] | None:
    return [stop] if isinstance(stop, str) and stop else stop or None


#: The values of ``reasoning_effort`` that Anthropic's ``effort`` has too.
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def _effort_from_chat(field: str, effort: Any, translation: Translation) -> Any:
    if effort in _EFFORTS:
        return effort
    translation.leave_out(field, f"anthropic takes {', '.join(_EFFORTS)}")
    return None


def _format_to_chat(field: str, value: Any, _translation: Translation) -> Json | None:
    if not (output_format := object_of(field, value)):
        return None
    if output_format.get("type") != "json_schema" or not isinstance(output_format.get("schema"), dict):
        raise invalid(field, "it has the type json_schema, and a schema")
    # OpenAI's format requires a name for the schema; Anthropic's has none.
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": output_format["schema"]}}


def _format_from_chat(field: str, value: Json, translation: Translation) -> Json | None:
    shown: Any = value.get("json_schema")
    if value.get("type") == "json_schema" and isinstance(shown, dict) and isinstance(shown.get("schema"), dict):
        if shown.get("description"):
            translation.note(f"{field}.json_schema.description")
        return {"type": "json_schema", "schema": shown["schema"]}
    translation.leave_out(field, "anthropic takes type json_schema, with a json_schema.schema", value)
    return None


def _noted(field: str, _value: Any, translation: Translation) -> None:
    translation.note(field)


#: The settings that both APIs have. What a conversation and its tools are is translated by itself.
FIELDS: Final = (
    *(Field(name, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "thinking")),
    Field("cache_control", "cache_control", to_chat=_noted),
    Field("stop", "stop_sequences", _stop_to_chat, _stop_from_chat),
    Field("user", "metadata.user_id"),
    Field("reasoning_effort", "output_config.effort", from_chat=_effort_from_chat),
    Field("response_format", "output_config.format", _format_to_chat, _format_from_chat),
)

_SYSTEM_ROLES = ("system", "developer")

#: OpenAI's tool choices → Anthropic's.
_TOOL_CHOICES = {"none": "none", "auto": "auto", "required": "any"}


def request_to_chat(body: Json, translation: Translation) -> Json:
    """Return a messages request as a chat request. Raises `BadRequest`, which names the field."""
    settings = {name: body[name] for name in body.keys() - {"messages", "system", "tools", "tool_choice"}}
    chat = settings_to_chat(FIELDS, settings, translation) | _tools_to_chat(body, translation)
    messages: list[Json] = []
    if body.get("system") is not None:
        messages.append({"role": "system", "content": _parts("system", body["system"], translation)})
        translation.places.append("system")
    for index, message in enumerate(body["messages"]):
        messages += (found := _messages(f"messages.{index}", message, translation))
        translation.places += [f"messages.{index}"] * len(found)
    return {**chat, "messages": messages}


def request_from_chat(chat: Json, translation: Translation) -> Json:
    """Return a chat request as a messages request. Raises `BadRequest`, which names the field."""
    others = {"messages", "tools", "tool_choice", "parallel_tool_calls", "safety_identifier"}
    settings = {name: chat[name] for name in chat.keys() - others}
    if chat.get("safety_identifier"):
        settings["user"] = chat["safety_identifier"]
    body = settings_from_chat(FIELDS, settings, translation)
    return body | _tools_from_chat(chat, translation) | _conversation(chat["messages"], translation)


def _tools_to_chat(body: Json, translation: Translation) -> Json:
    chat: Json = {}
    if body.get("tools"):
        tools = enumerate(all_objects("tools", body["tools"]))
        chat["tools"] = [_tool_to_chat(f"tools.{index}.", tool, translation) for index, tool in tools]
    if body.get("tool_choice") is None:
        return chat
    choice = object_of("tool_choice", body["tool_choice"])
    words = {written: word for word, written in _TOOL_CHOICES.items()}
    if choice.get("type") == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": named("tool_choice.name", choice.get("name"))}}
    elif choice.get("type") in words:
        chat["tool_choice"] = words[choice["type"]]
    else:
        raise invalid("tool_choice.type", "write auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    translation.leave_out_rest("tool_choice.", choice, ("type", "name", "disable_parallel_tool_use"))
    return chat


def _tool_to_chat(path: str, tool: Json, translation: Translation) -> Json:
    if tool.get("type") not in {None, "custom"}:
        raise invalid(f"{path}type", "this target takes tools of your own")
    if not isinstance(tool.get("input_schema"), dict):
        raise invalid(f"{path}input_schema", "it is an object")
    translation.leave_out_rest(path, tool, ("type", "name", "description", "input_schema", "strict"))
    function = {"name": named(f"{path}name", tool.get("name")), "parameters": tool["input_schema"]}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tools_from_chat(chat: Json, translation: Translation) -> Json:
    if not chat.get("tools"):
        return {}
    tools = [_tool_from_chat(f"tools[{index}]", tool, translation) for index, tool in enumerate(chat["tools"])]
    choice: Any = chat.get("tool_choice")
    chosen: Json = {}
    if isinstance(choice, str) and choice in _TOOL_CHOICES:
        chosen = {"type": _TOOL_CHOICES[choice]}
    elif choice is not None and (name := chosen_function(choice, tools, translation)) is not None:
        chosen = {"type": "tool", "name": name}
    if chat.get("parallel_tool_calls") is False and chosen.get("type") != "none":
        chosen = {"type": "auto", **chosen, "disable_parallel_tool_use": True}
    return {"tools": tools, **({"tool_choice": chosen} if chosen else {})}


def _tool_from_chat(field: str, tool: Any, translation: Translation) -> Json:
    marker, unmarked = _marker_of(tool)
    function = function_of(field, unmarked, translation)
    written: Json = {"name": function["name"]}
    if function.get("description") is not None:
        written["description"] = function["description"]
    written["input_schema"] = function.get("parameters") or {"type": "object", "properties": {}}
    if function.get("strict"):
        written["strict"] = True
    return written | marker


def _marker_of(part: Any) -> tuple[Json, Any]:
    """Return the cache marker of a tool or a part, as a field of its block, and the part without it."""
    if not isinstance(part, dict) or part.get("cache_control") is None:
        return {}, part
    unmarked = dict(part)
    return {"cache_control": unmarked.pop("cache_control")}, unmarked


def _messages(path: str, message: Json, translation: Translation) -> list[Json]:
    """Return a message as chat messages: each tool result is one of its own, before the other blocks."""
    role, content = message.get("role"), message.get("content")
    translation.leave_out_rest(f"{path}.", message, ("role", "content"))
    if role not in {"user", "assistant"}:
        raise invalid(f"{path}.role", "write user or assistant")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = all_objects(f"{path}.content", content)
    if role == "assistant":
        return [_assistant_message(path, blocks, translation)]
    results: list[Json] = []
    parts: list[Json] = []
    for index, block in enumerate(blocks):
        field = f"{path}.content.{index}"
        if block.get("type") == "tool_result":
            results.append(_tool_result_to_chat(field, block, translation))
        else:
            parts.append(_part(field, block, translation))
    return results if results and not parts else [*results, {"role": role, "content": parts}]


def _assistant_message(path: str, blocks: list[Json], translation: Translation) -> Json:
    text, calls, thinking = "", [], []
    for index, block in enumerate(blocks):
        field, kind = f"{path}.content.{index}", block.get("type")
        if kind == "tool_use":
            translation.leave_out_rest(f"{field}.", block, ("type", "id", "name", "input"))
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            calls.append(tool_call(block.get("id"), block.get("name"), arguments))
        elif kind in {"thinking", "redacted_thinking"}:
            thinking.append(block)
        elif kind == "text":
            text += _part(field, block, translation)["text"]
        else:
            raise invalid(f"{field}.type", "supported are text, thinking and tool_use of the assistant")
    turn: Json = {"role": "assistant", "content": text or None if calls else text}
    if calls:
        turn["tool_calls"] = calls
    if thinking:
        turn |= {"reasoning_content": reasoning_text(thinking), "thinking_blocks": thinking}
    return turn


def _tool_result_to_chat(field: str, block: Json, translation: Translation) -> Json:
    translation.leave_out_rest(f"{field}.", block, ("type", "tool_use_id", "content", "is_error"))
    content = _parts(f"{field}.content", block.get("content") or "", translation)
    answered = named(f"{field}.tool_use_id", block.get("tool_use_id"))
    message: Json = {"role": "tool", "tool_call_id": answered, "content": content}
    return {**message, "is_error": True} if block.get("is_error") else message


def _parts(path: str, content: object, translation: Translation) -> str | list[Json]:
    if isinstance(content, str):
        return content
    parts = [_part(f"{path}.{index}", block, translation) for index, block in enumerate(all_objects(path, content))]
    # Every server takes a text.
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(field: str, block: Json, translation: Translation) -> Json:
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        if not isinstance(block.get("text"), str):
            raise invalid(f"{field}.text", "it is a text")
        translation.leave_out_rest(f"{field}.", block, ("type", "text"))
        return {"type": "text", "text": block["text"]}
    if kind in {"image", "document"} and not isinstance(source, dict):
        raise invalid(f"{field}.source", "it is an object")
    if kind == "image" and isinstance(source, dict):
        translation.leave_out_rest(f"{field}.", block, ("type", "source"))
        is_url = source.get("type") == "url"
        url = named(f"{field}.source.url", source.get("url")) if is_url else _data_url(f"{field}.source", source)
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "document" and isinstance(source, dict):
        return _document(field, block, source, translation)
    raise invalid(
        f"{field}.type", "supported are text, image and document, thinking and tool_use of the assistant, and "
        "tool_result of the user"
    )  # fmt: skip


def _document(field: str, block: Json, source: Json, translation: Translation) -> Json:
    if (block.get("citations") or {}).get("enabled"):
        translation.leave_out(f"{field}.citations")
    translation.leave_out_rest(f"{field}.", block, ("type", "source", "title", "citations"))
    if source.get("type") == "text":
        if block.get("title") is not None:
            translation.leave_out(f"{field}.title")
        return {"type": "text", "text": source.get("data", "")}
    return file_part(_data_url(f"{field}.source", source), block.get("title"))


def _data_url(field: str, source: Json) -> str:
    if source.get("type") != "base64":
        raise invalid(f"{field}.type", "this target takes base64, URLs of images, and documents of type text")
    media_type, data = (named(f"{field}.{name}", source.get(name)) for name in ("media_type", "data"))
    return f"data:{media_type};base64,{data}"


def _conversation(messages: list[Json], translation: Translation) -> Json:
    for index, message in enumerate(messages):
        if message.get("name") is not None:
            translation.leave_out(f"messages[{index}].name")
    first = next((at for at, message in enumerate(messages) if message["role"] not in _SYSTEM_ROLES), len(messages))
    system = [
        _system_content(f"messages[{at}].content", message, translation) for at, message in enumerate(messages[:first])
    ]
    turns = _turns(messages, first, translation)
    if not system:
        return {"messages": turns}
    if len(system) == 1:
        return {"system": system[0], "messages": turns}
    blocks = [[{"type": "text", "text": item}] if isinstance(item, str) else item for item in system]
    return {"system": [block for item in blocks for block in item], "messages": turns}


def _turns(messages: list[Json], first: int, translation: Translation) -> list[Json]:
    turns: list[Json] = []
    #: The results of the calls of one message go into one message.
    results: list[Json] | None = None
    for index, message in enumerate(messages[first:], first):
        field, role = f"messages[{index}]", message["role"]
        if role == "tool":
            if results is None:
                turns.append({"role": "user", "content": (results := [])})
            results.append(_tool_result_from_chat(field, message, translation))
            continue
        results = None
        if role == "assistant":
            turns.append({"role": role, "content": _assistant_blocks(field, message, translation)})
        elif role == "user":
            turns.append({"role": role, "content": _user_content(f"{field}.content", message, translation)})
        else:
            raise invalid(f"{field}.role", "anthropic takes a system message only at the start")
    return turns


def _system_content(field: str, message: Json, translation: Translation) -> str | list[Json]:
    translation.leave_out_rest(f"{field.removesuffix('content')}", message, ("role", "content", "name"))
    content = message.get("content")
    return content if isinstance(content, str) and content else _filled(field, _texts(field, content, translation))


def _filled(field: str, blocks: list[Json]) -> list[Json]:
    if not blocks:
        raise invalid(field, "it is empty; anthropic takes no empty message")
    return blocks


def _texts(field: str, content: object, translation: Translation) -> list[Json]:
    """Return text, or text parts, as blocks; empty ones are left out, because Anthropic refuses them."""
    parts = [{"text": content}] if isinstance(content, str) else objects(content)
    blocks = [_text_block(f"{field}[{index}]", part, translation) for index, part in enumerate(parts)]
    return [block for block in blocks if block is not None]


def _text_block(field: str, part: Json, translation: Translation) -> Json | None:
    marker, unmarked = _marker_of(part)
    text = part.get("text") or part.get("refusal")
    translation.leave_out_rest(f"{field}.", unmarked if text else part, ("type", "text", "refusal"))
    return {"type": "text", "text": text, **marker} if text else None


def _tool_result_from_chat(field: str, message: Json, translation: Translation) -> Json:
    translation.leave_out_rest(f"{field}.", message, ("role", "content", "tool_call_id", "is_error", "name"))
    content = message.get("content")
    result: Json = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
    result["content"] = content if isinstance(content, str) else _texts(f"{field}.content", content, translation)
    return {**result, "is_error": True} if message.get("is_error") else result


_OF_THE_ASSISTANT = (
    "role", "content", "refusal", "tool_calls", "thinking_blocks", "reasoning_content", "reasoning", "name",
)  # fmt: skip


def _assistant_blocks(field: str, message: Json, translation: Translation) -> list[Json]:
    thoughts = objects(message.get("thinking_blocks"))
    blocks = [block for block in thoughts if block.get("signature") or block.get("data")]
    if len(blocks) < len(thoughts) or (message.get("reasoning_content") and not blocks):
        # No API takes back reasoning that it has not signed, and the model is not to be told it as if it were text.
        translation.note("messages.reasoning")
    if message.get("refusal") and message.get("content"):
        translation.leave_out(f"{field}.refusal")
    translation.leave_out_rest(f"{field}.", message, _OF_THE_ASSISTANT)
    blocks += _texts(f"{field}.content", message.get("content") or message.get("refusal"), translation)
    for index, call in enumerate(message.get("tool_calls") or []):
        path, function = f"{field}.tool_calls[{index}]", call.get("function")
        if not isinstance(function, dict):
            raise invalid(path, "anthropic takes functions only")
        arguments = parse_object(function.get("arguments") or "{}")
        if arguments is None:
            raise invalid(f"{path}.function.arguments", "anthropic takes a JSON object only")
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments})
    return _filled(f"{field}.content", blocks)


def _user_content(field: str, message: Json, translation: Translation) -> str | list[Json]:
    translation.leave_out_rest(f"{field.removesuffix('content')}", message, ("role", "content", "name"))
    content = message.get("content")
    if isinstance(content, str) and content:
        return content
    parts = enumerate(content if isinstance(content, list) else ())
    blocks = [_block(f"{field}[{index}]", part, translation) for index, part in parts]
    return _filled(field, [block for block in blocks if block is not None])


def _block(field: str, part: Any, translation: Translation) -> Json | None:
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return _text_block(field, part, translation)
    marker, unmarked = _marker_of(part)
    if kind == "image_url":
        image = image_part(field, unmarked, translation)
        if image.get("detail") not in {None, "auto"}:
            translation.leave_out(f"{field}.image_url.detail", "anthropic does not take it; leave it out")
        return {"type": "image", "source": image_source(field, image["url"]), **marker}
    if kind == "file":
        return document_of(field, unmarked, translation) | marker
    raise invalid(field, "this target takes text, image_url and file parts only")
