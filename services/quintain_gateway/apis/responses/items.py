"""Converts the input items of OpenAI's Responses API to messages. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from quintain.contracts.invoke import ChatMessage, JsonObject, Reasoning, ToolCall
from quintain_gateway.http.schemas import InvalidField, RequestModel, validate_as


class _MessageItem(RequestModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[JsonObject]


class _FunctionCallItem(RequestModel):
    call_id: str
    name: str
    arguments: str


class _FunctionCallOutputItem(RequestModel):
    call_id: Annotated[str, Field(min_length=1)]
    output: str | list[JsonObject]


class _ReasoningText(RequestModel):
    text: str


class _ReasoningItem(RequestModel):
    summary: list[_ReasoningText] | None = None
    content: list[_ReasoningText] | None = None
    encrypted_content: str | None = None


class _TextPart(RequestModel):
    text: str


class _RefusalPart(RequestModel):
    refusal: str


class _InputImage(RequestModel):
    image_url: str
    detail: str | None = None


class _InputFile(RequestModel):
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


#: A tuple: the type of a part is any JSON value.
_TEXT_PARTS = ("input_text", "output_text", "text")


def parse_items(items: Sequence[JsonObject]) -> list[ChatMessage]:
    """Convert input items to messages in OpenAI's chat format. Raises `InvalidField`, which names the item's field.

    Reasoning, text and function calls of the assistant that follow each other are one message.
    """
    messages: list[ChatMessage] = []
    for index, item in enumerate(items):
        message = _parse_item(f"input.{index}", item)
        if message.role == "assistant" and messages and _continues(messages[-1], message):
            messages[-1] = _joined(messages[-1], message)
        else:
            messages.append(message)
    return messages


def _continues(first: ChatMessage, second: ChatMessage) -> bool:
    """Whether the second item belongs to the message of the first: reasoning and text come before the calls."""
    if first.role != "assistant" or (second.reasoning and (first.content or first.tool_calls)):
        return False
    return not (second.content and (first.content or first.tool_calls))


def _joined(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    return ChatMessage(
        role="assistant",
        content=first.content or second.content,
        tool_calls=[*(first.tool_calls or []), *(second.tool_calls or [])] or None,
        reasoning=[*(first.reasoning or []), *(second.reasoning or [])] or None,
    )


def _parse_item(path: str, item: JsonObject) -> ChatMessage:
    kind = item.get("type", "message")
    if kind == "message":
        message = validate_as(_MessageItem, item, path)
        role = "system" if message.role == "developer" else message.role
        return ChatMessage(role=role, content=_parse_content(f"{path}.content", message.content))
    if kind == "function_call":
        call = validate_as(_FunctionCallItem, item, path)
        tool_call = ToolCall(id=call.call_id, name=call.name, arguments=call.arguments)
        return ChatMessage(role="assistant", content="", tool_calls=[tool_call])
    if kind == "function_call_output":
        result = validate_as(_FunctionCallOutputItem, item, path)
        content = _parse_content(f"{path}.output", result.output)
        return ChatMessage(role="tool", tool_call_id=result.call_id, content=content)
    if kind == "reasoning":
        return ChatMessage(
            role="assistant", content="", reasoning=_parse_reasoning(validate_as(_ReasoningItem, item, path))
        )
    known = "message, function_call, function_call_output and reasoning"
    reason = "nothing is stored; send the item itself" if kind == "item_reference" else f"supported are {known}"
    raise InvalidField(f"{path}.type", f"{path}.type: {reason}")


def _parse_reasoning(item: _ReasoningItem) -> list[Reasoning]:
    text = "".join(piece.text for piece in item.content or item.summary or [])
    if item.encrypted_content is not None and not text:
        return [Reasoning(redacted=item.encrypted_content)]
    return [Reasoning(text=text, signature=item.encrypted_content)] if text else []


def _parse_content(path: str, content: str | list[JsonObject]) -> str | list[JsonObject]:
    if isinstance(content, str):
        return content
    parts = [_parse_part(f"{path}.{index}", part) for index, part in enumerate(content)]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    # One text is written as such: that is how an answer comes back, and every target takes it.
    return str(texts[0]) if len(parts) == len(texts) == 1 else parts


def _parse_part(path: str, part: JsonObject) -> JsonObject:
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": validate_as(_TextPart, part, path).text}
    if kind == "refusal":
        return {"type": "text", "text": validate_as(_RefusalPart, part, path).refusal}
    if kind == "input_image":
        _refuse_file_id(path, part)
        image = validate_as(_InputImage, part, path)
        detail: JsonObject = {} if image.detail is None else {"detail": image.detail}
        return {"type": "image_url", "image_url": {"url": image.image_url, **detail}}
    if kind == "input_file":
        _refuse_file_id(path, part)
        file = validate_as(_InputFile, part, path).model_dump(include=set(_InputFile.model_fields), exclude_none=True)
        return {"type": "file", "file": file}
    raise InvalidField(f"{path}.type", f"{path}.type: supported are input_text, input_image, input_file, output_text")


def _refuse_file_id(path: str, part: JsonObject) -> None:
    if part.get("file_id") is not None:
        raise InvalidField(f"{path}.file_id", f"{path}.file_id: no files are stored; send the content or a URL")
