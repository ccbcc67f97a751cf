"""Prepares untrusted texts and messages for a page: controls visible, long texts cut, two texts compared. No I/O."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import JsonValue

from quintain.contracts.invoke import ChatMessage, OutputMessage

#: A text longer than this is cut on a page; the raw row has all of it.
MAX_SHOWN_CHARACTERS: Final = 20_000

#: Texts with more words than this are not compared word by word, because that takes time with the square of it.
MAX_COMPARED_WORDS: Final = 1_500

#: Two texts with a smaller share of words in common are two texts, not one and its changes.
LEAST_SAME_SHARE: Final = 0.4

#: A space belongs to what is before it: spaces by themselves are so many that to compare them takes most of the time.
_PARTS = re.compile(r"\w+\s*|\W\s*")


class TextSpan(NamedTuple):
    """A piece of text, and what the difference says of it: "same", "added" (only in the answer) or "missing"."""

    kind: str
    text: str


class ShownText(NamedTuple):
    """A text as a page shows it; ``cut`` is the number of characters that it leaves out."""

    text: str
    cut: int = 0


def shown(text: str, max_characters: int = MAX_SHOWN_CHARACTERS) -> ShownText:
    """The text as a page shows it: visible, and cut if it is long."""
    return ShownText(text[:max_characters], max(0, len(text) - max_characters))


def one_line(text: str, max_characters: int = 160) -> str:
    """The beginning of a text as one visible line."""
    line = " ".join(text[: 2 * max_characters].split())
    return line if len(line) <= max_characters else f"{line[: max_characters - 1]}…"


def json_text(value: JsonValue) -> str:
    """A JSON value as text: a string as it is, anything else as indented JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def word_difference(expected: str, answer: str) -> list[TextSpan]:
    """The difference of two texts by words.

    It is empty where it is not worth reading: where they are equal, have too many words, or have less than
    `LEAST_SAME_SHARE` of their words in common.
    """
    before, after = _PARTS.findall(expected), _PARTS.findall(answer)
    if before == after or not before or len(before) + len(after) > MAX_COMPARED_WORDS:
        return []
    if 2 * min(len(before), len(after)) < LEAST_SAME_SHARE * (len(before) + len(after)):
        return []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < LEAST_SAME_SHARE:
        return []
    spans: list[TextSpan] = []
    for operation, start, end, new_start, new_end in matcher.get_opcodes():
        if operation == "equal":
            spans.append(TextSpan("same", "".join(before[start:end])))
            continue
        spans += [TextSpan("missing", "".join(before[start:end]))] if end > start else []
        spans += [TextSpan("added", "".join(after[new_start:new_end]))] if new_end > new_start else []
    return spans if any(span.kind == "same" and span.text.strip() for span in spans) else []


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
