"""Translates requests of OpenAI's chat completions to its Responses API. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from quintain.apis.media import FILE_TYPES, check_data_url, file_of, image_part
from quintain.apis.translation import Json, Translation, chosen_function, function_of, invalid, objects, text_of

#: Fields that both APIs have under the same name.
SAME: Final = (
    "temperature", "top_p", "top_logprobs", "parallel_tool_calls", "user", "metadata", "service_tier",
    "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "moderation", "store",
)  # fmt: skip

#: What asks for the log probabilities of the answer's tokens, in ``include``.
LOGPROBS: Final = "message.output_text.logprobs"

_TRANSLATED = (
    "messages", "max_tokens", "max_completion_tokens", "logprobs", "reasoning_effort", "verbosity", "response_format",
    "tools", "tool_choice",
)  # fmt: skip


def request_from_chat(chat: Json, translation: Translation) -> Json:
    """Return a chat request as a Responses request. Raises `BadRequest`, which names the field."""
    limit = chat.get("max_completion_tokens")
    limit = chat.get("max_tokens") if limit is None else limit
    body: Json = {name: chat[name] for name in SAME if chat.get(name) is not None}
    if limit is not None:
        body["max_output_tokens"] = limit
    if chat.get("logprobs"):
        body["include"] = [LOGPROBS]
    if chat.get("reasoning_effort") is not None:
        body["reasoning"] = {"effort": chat["reasoning_effort"]}
    text: Json = {} if chat.get("verbosity") is None else {"verbosity": chat["verbosity"]}
    if (output_format := _format(chat.get("response_format"), translation)) is not None:
        text["format"] = output_format
    if text:
        body["text"] = text
    if chat.get("tools"):
        body["tools"] = [_tool(f"tools[{index}]", tool, translation) for index, tool in enumerate(chat["tools"])]
        if (choice := _choice(chat.get("tool_choice"), body["tools"], translation)) is not None:
            body["tool_choice"] = choice
    translation.leave_out_rest("", chat, {*SAME, *_TRANSLATED})
    messages = enumerate(chat["messages"])
    items = [item for index, message in messages for item in _items(f"messages[{index}]", message, translation)]
    return {**body, "input": items}


def _format(response_format: Json | None, translation: Translation) -> Json | None:
    if response_format is None or response_format.get("type") in {"text", "json_object"}:
        return response_format
    schema = response_format.get("json_schema")
    if response_format.get("type") == "json_schema" and isinstance(schema, dict):
        return {**schema, "type": "json_schema"}
    reason = 'write {"type": "json_schema", "json_schema": {"name": …, "schema": …}}'
    translation.leave_out("response_format", reason)
    return None


def _tool(field: str, tool: Any, translation: Translation) -> Json:
    custom = tool.get("custom") if isinstance(tool, dict) else None
    if isinstance(custom, dict):
        return {"type": "custom", **custom}
    function = function_of(field, tool, translation)
    translation.note_given(f"{field}.", tool, ("cache_control",))
    # ``strict`` is always set: the Responses API is strict by default, and the chat API is not.
    written = {
        "type": "function",
        "name": function["name"],
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        "strict": bool(function.get("strict")),
    }
    return written if function.get("description") is None else {**written, "description": function["description"]}


def _choice(choice: Any, tools: list[Json], translation: Translation) -> Any:
    if choice is None or choice in ("none", "auto", "required"):
        return choice
    name = chosen_function(choice, tools, translation)
    return None if name is None else {"type": "function", "name": name}


_KNOWN = (
    "role", "content", "tool_call_id", "tool_calls", "refusal", "name", "is_error", "thinking_blocks",
    "reasoning_content", "reasoning", "annotations",
)  # fmt: skip


def _items(field: str, message: Json, translation: Translation) -> Iterator[Json]:
    role, content = message["role"], message.get("content")
    if message.get("name") is not None:
        translation.leave_out(f"{field}.name")
    translation.note_given(f"{field}.", message, ("annotations",))
    translation.leave_out_rest(f"{field}.", message, _KNOWN)
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
        yield {"role": role, "content": [_part(f"{field}.content[{at}]", part, translation) for at, part in parts]}


def _check_parts(field: str, content: object, translation: Translation) -> None:
    for index, part in enumerate(objects(content)):
        translation.note_given(f"{field}[{index}].", part, ("cache_control",))
        translation.leave_out_rest(f"{field}[{index}].", part, ("type", "text", "refusal", "cache_control"))


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


def _part(field: str, part: Any, translation: Translation) -> Json:
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind in {"text", "image_url", "file"}:
        translation.note_given(f"{field}.", part, ("cache_control",))
    if kind == "text" and isinstance(part.get("text"), str):
        translation.leave_out_rest(f"{field}.", part, ("type", "text", "cache_control"))
        return {"type": "input_text", "text": part["text"]}
    if kind == "image_url":
        image = image_part(field, part, translation)
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
    if kind == "file":
        file = file_of(field, part, translation)
        check_data_url(f"{field}.file.file_data", file["file_data"], FILE_TYPES)
        return {"type": "input_file", **{name: value for name, value in file.items() if value is not None}}
    raise invalid(field, "this target takes text, image_url and file parts only")
