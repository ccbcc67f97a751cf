"""Translates requests of OpenAI's chat completions to Anthropic's messages. No I/O."""

from __future__ import annotations

from typing import Any, Final

from quintain.apis.media import document_of, image_part, image_source
from quintain.apis.translation import Json, Translation, chosen_function, function_of, invalid, objects, parse_object

#: Chat fields that Anthropic's API has under the same name.
_SAME = ("temperature", "top_p", "top_k", "thinking", "cache_control")

#: Chat fields that change no answer, and have no counterpart.
_WITHOUT_EFFECT = (
    "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "service_tier", "store",
)  # fmt: skip

_TRANSLATED = (
    "messages", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice", "parallel_tool_calls",
    "response_format", "reasoning_effort", "user", "safety_identifier",
)  # fmt: skip

#: The values of ``reasoning_effort`` that Anthropic's ``effort`` has too.
_EFFORTS = ("low", "medium", "high", "xhigh", "max")

_SYSTEM_ROLES = ("system", "developer")

#: OpenAI's tool choices → Anthropic's.
TOOL_CHOICES: Final = {"none": "none", "auto": "auto", "required": "any"}


def request_from_chat(chat: Json, translation: Translation) -> Json:
    """Return a chat request as a messages request. Raises `BadRequest`, which names the field."""
    limit = chat.get("max_completion_tokens")
    body: Json = {name: chat[name] for name in _SAME if chat.get(name) is not None}
    body["max_tokens"] = chat.get("max_tokens") if limit is None else limit
    stop, user = chat.get("stop"), chat.get("safety_identifier") or chat.get("user")
    if stop:
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if user is not None:
        body["metadata"] = {"user_id": user}
    body |= _tools(chat, translation)
    if config := _output_config(chat, translation):
        body["output_config"] = config
    translation.note_given("", chat, _WITHOUT_EFFECT)
    translation.leave_out_rest("", chat, {*_SAME, *_TRANSLATED, *_WITHOUT_EFFECT})
    return body | _conversation(chat["messages"], translation)


def _output_config(chat: Json, translation: Translation) -> Json:
    config: Json = {}
    if (effort := chat.get("reasoning_effort")) is not None:
        if effort in _EFFORTS:
            config["effort"] = effort
        else:
            translation.leave_out("reasoning_effort", f"anthropic takes {', '.join(_EFFORTS)}")
    response_format = chat.get("response_format")
    if response_format is None or response_format.get("type") == "text":
        return config
    json_schema = response_format.get("json_schema")
    schema = json_schema.get("schema") if isinstance(json_schema, dict) else None
    if response_format.get("type") == "json_schema" and isinstance(schema, dict):
        translation.note_given("response_format.json_schema.", json_schema, ("description",))
        return {**config, "format": {"type": "json_schema", "schema": schema}}
    translation.leave_out("response_format", "anthropic takes type json_schema, with a json_schema.schema")
    return config


def _tools(chat: Json, translation: Translation) -> Json:
    if not chat.get("tools"):
        return {}
    tools = [_tool(f"tools[{index}]", tool, translation) for index, tool in enumerate(chat["tools"])]
    choice: Any = chat.get("tool_choice")
    chosen: Json = {}
    if isinstance(choice, str) and choice in TOOL_CHOICES:
        chosen = {"type": TOOL_CHOICES[choice]}
    elif choice is not None and (name := chosen_function(choice, tools, translation)) is not None:
        chosen = {"type": "tool", "name": name}
    if chat.get("parallel_tool_calls") is False and chosen.get("type") != "none":
        chosen = {"type": "auto", **chosen, "disable_parallel_tool_use": True}
    return {"tools": tools, **({"tool_choice": chosen} if chosen else {})}


def _tool(field: str, tool: Any, translation: Translation) -> Json:
    function = function_of(field, tool, translation)
    written: Json = {"name": function["name"]}
    if function.get("description") is not None:
        written["description"] = function["description"]
    written["input_schema"] = function.get("parameters") or {"type": "object", "properties": {}}
    if function.get("strict"):
        written["strict"] = True
    return _with_cache_control(written, tool)


def _with_cache_control(block: Json, source: Json) -> Json:
    marker = source.get("cache_control")
    return block if marker is None else {**block, "cache_control": marker}


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
            results.append(_tool_result(field, message, translation))
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
    translation.leave_out_rest(f"{field}.", part, ("type", "text", "refusal", "cache_control"))
    if text := part.get("text") or part.get("refusal"):
        return _with_cache_control({"type": "text", "text": text}, part)
    translation.note_given(f"{field}.", part, ("cache_control",))
    return None


def _tool_result(field: str, message: Json, translation: Translation) -> Json:
    translation.leave_out_rest(f"{field}.", message, ("role", "content", "tool_call_id", "is_error", "name"))
    content = message.get("content")
    result: Json = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
    result["content"] = content if isinstance(content, str) else _texts(f"{field}.content", content, translation)
    return {**result, "is_error": True} if message.get("is_error") else result


_OF_THE_ASSISTANT = (
    "role", "content", "refusal", "tool_calls", "thinking_blocks", "reasoning_content", "reasoning", "name",
    "annotations",
)  # fmt: skip


def _assistant_blocks(field: str, message: Json, translation: Translation) -> list[Json]:
    thoughts = objects(message.get("thinking_blocks"))
    blocks = [block for block in thoughts if block.get("signature") or block.get("data")]
    if len(blocks) < len(thoughts) or (message.get("reasoning_content") and not blocks):
        # No API takes back reasoning that it has not signed, and the model is not to be told it as if it were text.
        translation.note("messages.reasoning")
    translation.note_given(f"{field}.", message, ("annotations",))
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
    if kind == "image_url":
        image = image_part(field, part, translation)
        if image.get("detail") not in {None, "auto"}:
            translation.leave_out(f"{field}.image_url.detail", "anthropic does not take it; leave it out")
        return _with_cache_control({"type": "image", "source": image_source(field, image["url"])}, part)
    if kind == "file":
        return _with_cache_control(document_of(field, part, translation), part)
    raise invalid(field, "this target takes text, image_url and file parts only")
