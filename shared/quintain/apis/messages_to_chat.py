"""Translates requests of Anthropic's messages to OpenAI's chat completions. No I/O."""

from __future__ import annotations

import json

from quintain.apis.media import file_part
from quintain.apis.messages import reasoning_text
from quintain.apis.messages_from_chat import TOOL_CHOICES
from quintain.apis.translation import Json, Translation, all_objects, invalid, named, object_of, tool_call

#: Fields that the chat API has under the same name.
_SAME = ("max_tokens", "temperature", "top_p", "top_k", "thinking")

_TRANSLATED = ("stop_sequences", "metadata", "output_config", "tools", "tool_choice", "system", "messages")

#: Fields that change no answer, and have no counterpart.
_WITHOUT_EFFECT = ("cache_control", "service_tier")


def request_to_chat(body: Json, translation: Translation) -> Json:
    """Return a messages request as a chat request. Raises `BadRequest`, which names the field."""
    chat: Json = {name: body[name] for name in _SAME if name in body}
    if body.get("stop_sequences") is not None:
        if not isinstance(body["stop_sequences"], list):
            raise invalid("stop_sequences", "it is a list of texts")
        chat["stop"] = body["stop_sequences"]
    metadata = object_of("metadata", body.get("metadata"))
    if metadata.get("user_id") is not None:
        chat["user"] = metadata["user_id"]
    translation.leave_out_rest("metadata.", metadata, ("user_id",))
    chat |= _output(object_of("output_config", body.get("output_config")), translation) | _tools(body, translation)
    translation.note_given("", body, _WITHOUT_EFFECT)
    translation.leave_out_rest("", body, {*_SAME, *_TRANSLATED, *_WITHOUT_EFFECT})
    messages: list[Json] = []
    if body.get("system") is not None:
        messages.append({"role": "system", "content": _parts("system", body["system"], translation)})
        translation.places.append("system")
    for index, message in enumerate(body["messages"]):
        messages += (found := _messages(f"messages.{index}", message, translation))
        translation.places += [f"messages.{index}"] * len(found)
    return {**chat, "messages": messages}


def _output(config: Json, translation: Translation) -> Json:
    """Return how much the model is to think, and what it is to write."""
    chat: Json = {} if config.get("effort") is None else {"reasoning_effort": config["effort"]}
    if output_format := object_of("output_config.format", config.get("format")):
        if output_format.get("type") != "json_schema" or not isinstance(output_format.get("schema"), dict):
            raise invalid("output_config.format", "it has the type json_schema, and a schema")
        # OpenAI's format requires a name for the schema; Anthropic's has none.
        schema = {"name": "answer", "schema": output_format["schema"]}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    translation.leave_out_rest("output_config.", config, ("effort", "format"))
    return chat


def _tools(body: Json, translation: Translation) -> Json:
    chat: Json = {}
    if body.get("tools"):
        tools = enumerate(all_objects("tools", body["tools"]))
        chat["tools"] = [_tool(f"tools.{index}.", tool, translation) for index, tool in tools]
    if body.get("tool_choice") is None:
        return chat
    choice = object_of("tool_choice", body["tool_choice"])
    words = {written: word for word, written in TOOL_CHOICES.items()}
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


def _tool(path: str, tool: Json, translation: Translation) -> Json:
    if tool.get("type") not in {None, "custom"}:
        raise invalid(f"{path}type", "this target takes tools of your own")
    if not isinstance(tool.get("input_schema"), dict):
        raise invalid(f"{path}input_schema", "it is an object")
    if tool.get("cache_control") is not None:
        translation.note("tools[].cache_control")
    known = ("type", "name", "description", "input_schema", "strict", "cache_control")
    translation.leave_out_rest(path, tool, known)
    function = {"name": named(f"{path}name", tool.get("name")), "parameters": tool["input_schema"]}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


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
            results.append(_tool_result(field, block, translation))
        else:
            parts.append(_part(field, block, translation))
    return results if results and not parts else [*results, {"role": role, "content": parts}]


def _assistant_message(path: str, blocks: list[Json], translation: Translation) -> Json:
    text, calls, thinking = "", [], []
    for index, block in enumerate(blocks):
        field, kind = f"{path}.content.{index}", block.get("type")
        if kind == "tool_use":
            _note_cache_control("messages[].content", block, translation)
            known = ("type", "id", "name", "input", "cache_control")
            translation.leave_out_rest(f"{field}.", block, known)
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


def _tool_result(field: str, block: Json, translation: Translation) -> Json:
    _note_cache_control("messages[].content", block, translation)
    known = ("type", "tool_use_id", "content", "is_error", "cache_control")
    translation.leave_out_rest(f"{field}.", block, known)
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


def _note_cache_control(path: str, block: Json, translation: Translation) -> None:
    if block.get("cache_control") is not None:
        translation.note(f"{path}[].cache_control")


def _part(field: str, block: Json, translation: Translation) -> Json:
    kind, source = block.get("type"), block.get("source")
    _note_cache_control("system" if field.startswith("system") else "messages[].content", block, translation)
    if kind == "text":
        if not isinstance(block.get("text"), str):
            raise invalid(f"{field}.text", "it is a text")
        translation.leave_out_rest(f"{field}.", block, ("type", "text", "cache_control"))
        return {"type": "text", "text": block["text"]}
    if kind in {"image", "document"} and not isinstance(source, dict):
        raise invalid(f"{field}.source", "it is an object")
    if kind == "image" and isinstance(source, dict):
        translation.leave_out_rest(f"{field}.", block, ("type", "source", "cache_control"))
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
    known = ("type", "source", "title", "citations", "cache_control")
    translation.leave_out_rest(f"{field}.", block, known)
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
