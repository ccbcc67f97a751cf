"""Converts the content blocks of Anthropic's messages to messages and content parts in OpenAI's format. No I/O."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field

from quintain.contracts.invoke import ChatMessage, JsonObject, Reasoning, ToolCall
from quintain_gateway.apis.anthropic.schemas import CACHE_FIELDS, AnthropicRequestMessage
from quintain_gateway.http.schemas import InvalidField, RequestModel, validate_as


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


class _PdfSource(RequestModel):
    type: Literal["base64"]
    media_type: Literal["application/pdf"]
    data: str


class _DocumentBlock(RequestModel):
    source: _PdfSource
    title: str | None = None


class _ThinkingBlock(RequestModel):
    thinking: str
    signature: str | None = None


class _RedactedThinkingBlock(RequestModel):
    data: str


class _ToolUseBlock(RequestModel):
    id: str
    name: str
    input: JsonObject


class _ToolResultBlock(RequestModel):
    tool_use_id: str
    content: str | list[JsonObject] | None = None
    is_error: bool | None = None


def parse_message(path: str, message: AnthropicRequestMessage) -> list[ChatMessage]:
    """Convert one of Anthropic's messages to messages in OpenAI's format.

    Each tool result becomes a message of its own, before the message with the other blocks. ``path`` is the message's
    path in the request, such as ``messages.0``. Raises `BadRequest`, which names the field.
    """
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    results: list[ChatMessage] = []
    calls: list[ToolCall] = []
    reasoning: list[Reasoning] = []
    parts: list[JsonObject] = []
    for index, block in enumerate(message.content):
        block_path, kind = f"{path}.content.{index}", block.get("type")
        if kind == "tool_result" and message.role == "user":
            results.append(_parse_tool_result(block_path, block))
        elif kind == "tool_use" and message.role == "assistant":
            tool_use = validate_as(_ToolUseBlock, block, block_path)
            calls.append(
                ToolCall(id=tool_use.id, name=tool_use.name, arguments=json.dumps(tool_use.input, ensure_ascii=False))
            )
        elif kind in ("thinking", "redacted_thinking") and message.role == "assistant":
            reasoning.append(_parse_thinking(block_path, block))
        else:
            parts.append(parse_block(block_path, block))
    if results and not parts:
        return results
    return [
        *results,
        ChatMessage(role=message.role, content=parts or "", tool_calls=calls or None, reasoning=reasoning or None),
    ]


def parse_blocks(path: str, content: str | list[JsonObject]) -> str | list[JsonObject]:
    """Convert text or a list of blocks to text or content parts. Raises `BadRequest`, which names the field."""
    if isinstance(content, str):
        return content
    return [parse_block(f"{path}.{index}", block) for index, block in enumerate(content)]


def parse_block(path: str, block: JsonObject) -> JsonObject:
    """Convert a text, image or document block to a content part. Raises `BadRequest`, which names the field."""
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": validate_as(_TextBlock, block, path).text}
    if kind == "image":
        source = validate_as(_ImageBlock, block, path).source
        url = source.url if isinstance(source, _UrlSource) else f"data:{source.media_type};base64,{source.data}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "document":
        document = validate_as(_DocumentBlock, block, path)
        name: JsonObject = {} if document.title is None else {"filename": document.title}
        url = f"data:{document.source.media_type};base64,{document.source.data}"
        return {"type": "file", "file": {"file_data": url, **name}}
    message = (
        "supported are text, image and document, thinking and tool_use in assistant messages, "
        "and tool_result in user messages"
    )
    raise InvalidField(f"{path}.type", f"{path}.type: {message}")


def unknown_message_fields(message: AnthropicRequestMessage) -> set[str]:
    """Return the fields of a message and its blocks that are not used, and might change an answer."""
    blocks = message.content if isinstance(message.content, list) else []
    known = {
        "text",
        "source",
        "id",
        "name",
        "input",
        "tool_use_id",
        "content",
        "type",
        "citations",
        "caller",
        "is_error",
        "thinking",
        "signature",
        "data",
        "title",
        *CACHE_FIELDS,
    }
    sent = {name for block in blocks for name, value in block.items() if value not in (None, False, [])}
    return message.unknown_fields("messages[].") | {f"messages[].content[].{name}" for name in sent - known}


def _parse_thinking(path: str, block: JsonObject) -> Reasoning:
    if block.get("type") == "redacted_thinking":
        return Reasoning(redacted=validate_as(_RedactedThinkingBlock, block, path).data)
    thinking = validate_as(_ThinkingBlock, block, path)
    return Reasoning(text=thinking.thinking, signature=thinking.signature or None)


def _parse_tool_result(path: str, block: JsonObject) -> ChatMessage:
    result = validate_as(_ToolResultBlock, block, path)
    content = parse_blocks(f"{path}.content", result.content or "")
    is_error = True if result.is_error else None
    return ChatMessage(role="tool", tool_call_id=result.tool_use_id, content=content, is_error=is_error)
