"""Converts the content blocks of Anthropic's messages to messages and parts in OpenAI's format. No I/O."""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from quintain.contracts.invoke import ChatMessage, JsonObject, ToolCall
from quintain_gateway.apis.anthropic.schemas import CACHE_FIELDS, AnthropicRequestMessage
from quintain_gateway.http.schemas import InvalidField, RequestModel, to_invalid_field


class _TextBlock(RequestModel):
    text: str


class _Base64Source(RequestModel):
    type: Literal["base64"]
    media_type: str
    data: str


class _UrlSource(RequestModel):
    type: Literal["url"]
    url: str


class _ImageBlock(RequestModel):
    source: Annotated[_Base64Source | _UrlSource, Field(discriminator="type")]


class _ToolUseBlock(RequestModel):
    id: str
    name: str
    input: JsonObject


class _ToolResultBlock(RequestModel):
    tool_use_id: str
    content: str | list[JsonObject] | None = None


BlockT = TypeVar("BlockT", bound=RequestModel)


def parse_message(path: str, message: AnthropicRequestMessage) -> list[ChatMessage]:
    """One message as turns: each tool's result is a turn of its own, before what the user says. Raises `BadRequest`,
    naming the field."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    results: list[ChatMessage] = []
    calls: list[ToolCall] = []
    parts: list[JsonObject] = []
    for index, block in enumerate(message.content):
        block_path, kind = f"{path}.content.{index}", block.get("type")
        if kind == "tool_result" and message.role == "user":
            results.append(_parse_tool_result(block_path, block))
        elif kind == "tool_use" and message.role == "assistant":
            tool_use = _validate_block(block_path, _ToolUseBlock, block)
            calls.append(
                ToolCall(id=tool_use.id, name=tool_use.name, arguments=json.dumps(tool_use.input, ensure_ascii=False))
            )
        else:
            parts.append(parse_block(block_path, block))
    if results and not parts:
        return results
    return [*results, ChatMessage(role=message.role, content=parts or "", tool_calls=calls or None)]


def parse_blocks(path: str, content: str | list[JsonObject]) -> str | list[JsonObject]:
    """Text, or blocks as parts. Raises `BadRequest`, naming the field."""
    if isinstance(content, str):
        return content
    return [parse_block(f"{path}.{index}", block) for index, block in enumerate(content)]


def parse_block(path: str, block: JsonObject) -> JsonObject:
    """A text or an image as a part. Raises `BadRequest`, naming the field."""
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": _validate_block(path, _TextBlock, block).text}
    if kind == "image":
        source = _validate_block(path, _ImageBlock, block).source
        url = source.url if isinstance(source, _UrlSource) else f"data:{source.media_type};base64,{source.data}"
        return {"type": "image_url", "image_url": {"url": url}}
    message = "blocks of type text and image are carried, and tool_use of the assistant and tool_result of the user"
    raise InvalidField(f"{path}.type", f"{path}.type: {message}")


def unknown_message_fields(message: AnthropicRequestMessage) -> set[str]:
    """The fields of a message and its blocks that nobody here reads."""
    blocks = message.content if isinstance(message.content, list) else []
    known = {"text", "source", "id", "name", "input", "tool_use_id", "content", "type", *CACHE_FIELDS}
    sent = {name for block in blocks for name, value in block.items() if value not in (None, False, [])}
    return message.unknown_fields("messages[].") | {f"messages[].content[].{name}" for name in sent - known}


def _parse_tool_result(path: str, block: JsonObject) -> ChatMessage:
    result = _validate_block(path, _ToolResultBlock, block)
    content = parse_blocks(f"{path}.content", result.content or "")
    return ChatMessage(role="tool", tool_call_id=result.tool_use_id, content=content)


def _validate_block(path: str, model: type[BlockT], block: JsonObject) -> BlockT:
    try:
        return model.model_validate(block)
    except ValidationError as error:
        raise to_invalid_field(error, path) from None
