"""Messages as a page shows them: text, reasoning, tool calls and images. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from quintain.contracts.invoke import ChatMessage, OutputMessage
from quintain_view.pages.text import ShownText, shown

#: Images that a browser shows and that cannot hold a script or a link. An image behind an address is not loaded.
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+")

MAX_IMAGE_CHARACTERS = 8_000_000


@dataclass(frozen=True, slots=True)
class MessagePart:
    """One part of a message: ``kind`` is "text", "reasoning", "tool call", "image", "refusal" or "other".

    ``image`` is a data URL; ``text`` is what an image is called by those who do not see it.
    """

    kind: str
    text: ShownText
    title: str = ""
    image: str | None = None


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message: who wrote it, and its parts."""

    role: str
    parts: list[MessagePart]
    is_error: bool = False


def shown_message(message: ChatMessage | OutputMessage) -> ShownMessage:
    """A message as a page shows it."""
    is_error = isinstance(message, ChatMessage) and bool(message.is_error)
    return ShownMessage(message.role, list(_parts(message)), is_error)


def shown_messages(messages: Iterable[ChatMessage | OutputMessage]) -> list[ShownMessage]:
    """Messages as a page shows them."""
    return [shown_message(message) for message in messages]


def _parts(message: ChatMessage | OutputMessage) -> Iterator[MessagePart]:
    for thought in message.reasoning or ():
        yield MessagePart("reasoning", shown(thought.text or thought.redacted or ""))
    if isinstance(message.content, str):
        if message.content:
            yield MessagePart("text", shown(message.content))
    else:
        yield from (_content_part(part) for part in message.content)
    if isinstance(message, OutputMessage) and message.refusal:
        yield MessagePart("refusal", shown(message.refusal))
    for call in message.tool_calls or ():
        yield MessagePart("tool call", shown(_pretty(call.arguments)), title=shown(call.name, 200).text)


def _content_part(part: Mapping[str, object]) -> MessagePart:
    if isinstance(text := part.get("text"), str):
        return MessagePart("text", shown(text))
    address = _image_address(part)
    if address is None:
        return MessagePart("other", shown(json.dumps(dict(part), indent=2, ensure_ascii=False)))
    if len(address) <= MAX_IMAGE_CHARACTERS and _IMAGE.fullmatch(address):
        return MessagePart("image", ShownText("an image of this message"), image="".join(address.split()))
    return MessagePart("other", shown(address, 400), title="an image that is not loaded")


def _image_address(part: Mapping[str, object]) -> str | None:
    image = part.get("image_url")
    address = image.get("url") if isinstance(image, dict) else image
    return address if isinstance(address, str) else None


def _pretty(arguments: str) -> str:
    """The arguments of a tool call, indented if they are JSON."""
    try:
        return json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    except ValueError:
        return arguments
