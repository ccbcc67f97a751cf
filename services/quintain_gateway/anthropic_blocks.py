"""The blocks of Anthropic's messages, as turns and parts as OpenAI writes them. Pure."""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from quintain.contracts.invoke import ChatMessage, JsonObject, ToolCall
from quintain_gateway.anthropic_body import CACHED, Turn
from quintain_gateway.bodies import BadField, Body, mistake_of


class _Text(Body):
    text: str


class _Inline(Body):
    type: Literal["base64"]
    media_type: str
    data: str


class _Linked(Body):
    type: Literal["url"]
    url: str


class _Image(Body):
    source: Annotated[_Inline | _Linked, Field(discriminator="type")]


class _Use(Body):
    id: str
    name: str
    input: JsonObject


class _Result(Body):
    tool_use_id: str
    content: str | list[JsonObject] | None = None


Block = TypeVar("Block", bound=Body)


def read_turn(where: str, turn: Turn) -> list[ChatMessage]:
    """One message as turns: each tool's result is a turn of its own, before what the user says. Raises `BadRequest`,
    naming the field."""
    if isinstance(turn.content, str):
        return [ChatMessage(role=turn.role, content=turn.content)]
    results: list[ChatMessage] = []
    calls: list[ToolCall] = []
    parts: list[JsonObject] = []
    for index, block in enumerate(turn.content):
        place, kind = f"{where}.content.{index}", block.get("type")
        if kind == "tool_result" and turn.role == "user":
            results.append(_read_result(place, block))
        elif kind == "tool_use" and turn.role == "assistant":
            use = _read(place, _Use, block)
            calls.append(ToolCall(id=use.id, name=use.name, arguments=json.dumps(use.input, ensure_ascii=False)))
        else:
            parts.append(read_block(place, block))
    if results and not parts:
        return results
    return [*results, ChatMessage(role=turn.role, content=parts or "", tool_calls=calls or None)]


def read_blocks(where: str, content: str | list[JsonObject]) -> str | list[JsonObject]:
    """Text, or blocks as parts. Raises `BadRequest`, naming the field."""
    if isinstance(content, str):
        return content
    return [read_block(f"{where}.{index}", block) for index, block in enumerate(content)]


def read_block(where: str, block: JsonObject) -> JsonObject:
    """A text or an image as a part. Raises `BadRequest`, naming the field."""
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": _read(where, _Text, block).text}
    if kind == "image":
        source = _read(where, _Image, block).source
        url = source.url if isinstance(source, _Linked) else f"data:{source.media_type};base64,{source.data}"
        return {"type": "image_url", "image_url": {"url": url}}
    what = "blocks of type text and image are carried, and tool_use of the assistant and tool_result of the user"
    raise BadField(f"{where}.type", f"{where}.type: {what}")


def unread(turn: Turn) -> set[str]:
    """The fields of a message and its blocks that nobody here reads."""
    blocks = turn.content if isinstance(turn.content, list) else []
    known = {"text", "source", "id", "name", "input", "tool_use_id", "content", "type", *CACHED}
    sent = {name for block in blocks for name, value in block.items() if value not in (None, False, [])}
    return turn.unread("messages[].") | {f"messages[].content[].{name}" for name in sent - known}


def _read_result(where: str, block: JsonObject) -> ChatMessage:
    result = _read(where, _Result, block)
    content = read_blocks(f"{where}.content", result.content or "")
    return ChatMessage(role="tool", tool_call_id=result.tool_use_id, content=content)


def _read(where: str, model: type[Block], block: JsonObject) -> Block:
    try:
        return model.model_validate(block)
    except ValidationError as error:
        raise mistake_of(error, where) from None
