"""The JSON of answers: what is none is named, and what servers do in several ways is put right. No I/O.

Half of a surrogate pair, which UTF-8 cannot write, becomes U+FFFD; the halves of one character may come in two events.
``-Infinity`` is a log probability, of which OpenAI's API writes -9999; any other number that is not finite is no JSON.
Of a name that stands twice in an object the last one counts. The calls of a streamed chat completion are told apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json, to_json

from quintain.apis.translation import Json, objects
from quintain.contracts.values import replace_surrogates, shorten

#: What OpenAI's API writes for a token that is very unlikely.
_UNLIKELY: Final = -9999.0


class UnreadableAnswer(ValueError):
    """An answer that is none of its API; the message says why, without the answer's own text, which ``came`` is."""

    def __init__(self, reason: str, came: str | bytes = b"") -> None:
        super().__init__(reason)
        self.came = came


def parse_json(text: str | bytes) -> object:
    """Parse the JSON of an answer, with U+FFFD for half of a surrogate pair. Raises `UnreadableAnswer`."""
    value, is_plain = _read(text)
    return value if is_plain else mended(value)


def parse_object(text: object) -> Json | None:
    """Return the JSON object that a text is; None where it is none."""
    try:
        parsed = parse_json(text) if isinstance(text, str) else text
    except UnreadableAnswer:
        return None
    return parsed if isinstance(parsed, dict) else None


def _read(text: str | bytes) -> tuple[object, bool]:
    """Return the JSON of a text, and whether it holds nothing that has to be mended. Raises `UnreadableAnswer`."""
    try:
        value = from_json(text, allow_inf_nan=False)
        # What is too large for a number is infinite.
        return value, b"Infinity" not in to_json(value)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise UnreadableAnswer("it is nested too deeply") from None
    try:
        # Only Python reads half of a surrogate pair, and other encodings.
        return json.loads(
            text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        ), False
    except RecursionError:
        raise UnreadableAnswer("it is nested too deeply") from None
    except ValueError as error:
        raise UnreadableAnswer(f"it is no JSON: {error}", text) from None


def mended(value: Any, place: str = "") -> Any:
    """Return JSON as UTF-8 and JSON can write it. Raises `UnreadableAnswer`, which names the place of a number."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(name): mended(item, f"{place}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [mended(item, f"{place}.{index}") for index, item in enumerate(value)]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if value == -math.inf and "logprob" in place:
        return _UNLIKELY
    raise UnreadableAnswer(f"{shorten(replace_surrogates(place[1:]))} is no finite number")


def says_something(value: object) -> bool:
    """Whether a value says anything: zero, false, what is empty, and what holds nothing else do not."""
    if isinstance(value, dict):
        return any(says_something(member) for member in value.values())
    return any(map(says_something, value)) if isinstance(value, list) else bool(value)


class CharacterJoiner:
    """Joins the characters of which the halves came in two events, and replaces halves that stay alone.

    An event that ends with a half waits for its text to go on, and so do those of the same kind after it.
    """

    def __init__(self) -> None:
        self._waiting: list[Json] = []
        #: The texts that end with a half, by their places: what holds them, and under which name.
        self._halves: dict[tuple[object, ...], tuple[Any, Any]] = {}

    def parse(self, text: str) -> Iterable[Any]:
        """Return the JSON of the next event's data, behind those that waited before it. Raises `UnreadableAnswer`."""
        event, is_plain = _read(text)
        return [event] if is_plain and not self._waiting else self.feed(event)

    def feed(self, event: Any) -> Iterator[Any]:
        """Yield the next event, and those that waited before it."""
        for place, holder, name in _texts([event], ()):
            before, key = self._halves.pop(place, ({}, "")) if holder[name] else ({}, "")
            if before and "\udc00" <= holder[name][0] <= "\udfff":
                before[key], holder[name] = before[key][:-1], before[key][-1] + holder[name]
            if "\ud800" <= holder[name][-1:] <= "\udbff":
                self._halves[place] = holder, name
        self._waiting.append(event)
        if not self._halves or len(self._waiting) > _MAX_WAITING or _ends(event, self._waiting[0]):
            yield from self.end()

    def end(self) -> Iterator[Any]:
        """Yield the events that wait, after which no other one comes."""
        waiting, self._waiting, self._halves = self._waiting, [], {}
        yield from map(mended, waiting)


#: How many events wait for the other half of a character.
_MAX_WAITING: Final = 8


def _ends(event: object, first: object) -> bool:
    """Whether an event says that no text of the ``first`` one goes on after it."""
    if (
        not isinstance(event, dict)
        or not isinstance(first, dict)
        or event.get("type") not in ("ping", first.get("type"))
    ):
        return True
    return any(choice.get("finish_reason") for choice in objects(event.get("choices")))


#: What says to which text of an answer an event belongs.
_COUNTERS: Final = ("type", "index", "output_index", "content_index", "summary_index")


def _texts(holder: Any, place: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], Any, Any]]:
    """Yield the place of each text below an object or a list, what holds it, and under which name."""
    for name, item in holder.items() if isinstance(holder, dict) else enumerate(holder):
        if isinstance(item, str):
            yield (*place, name), holder, name
        elif isinstance(item, dict | list):
            fields: Json = item if isinstance(item, dict) and isinstance(holder, list) else {}
            counted: list[object] = [str(fields[key]) for key in (("index",) if place else _COUNTERS) if key in fields]
            yield from _texts(item, (*place, *(counted or [name])))


@dataclass(slots=True)
class _Call:
    """A call of a streamed chat completion: its own index, the one that its server gave, and what came of it."""

    index: int
    given: object
    id: object = None
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def ends_before(self, name: str) -> bool:
        """Whether this name, without an id, begins another call."""
        written = "".join(self.arguments)
        return bool(name and written) and (name != self.name or parse_object(written) is not None)


class CallNumbers:
    """Gives each call of a streamed chat completion an index of its own: some servers give several the same, or none.

    A new id begins a new call; without ids, a name does after arguments that are complete. What is null, and an id or
    a name that is said again, is left out, because clients join what comes. A choice that came with its whole message
    is a piece, too.
    """

    def __init__(self) -> None:
        self._choices: dict[object, list[_Call]] = {}

    def number(self, chunk: Json) -> None:
        """Set the index of each call in the next chunk."""
        for choice in objects(chunk.get("choices")):
            if "message" in choice:
                choice.setdefault("delta", choice.pop("message"))
            for delta in objects([choice.get("delta")]):
                for call in objects(delta.get("tool_calls")):
                    _number(self._choices.setdefault(choice.get("index"), []), call)


def _number(calls: list[_Call], call: Json) -> None:
    given, call_id = call.get("index"), call.get("id") or None
    function = next(iter(objects([call.get("function"), call.get("custom")])), {})
    name, arguments = (text if isinstance(text := function.get(key), str) else "" for key in ("name", "arguments"))
    latest = next((known for known in reversed(calls) if given is None or known.given == given), None)
    own = latest
    if call_id is not None:
        own = next((known for known in reversed(calls) if known.id == call_id), None)
        # Some servers send the id after the name, and some the same one for all calls.
        own = latest if own is None and latest and latest.id is None and not (name and latest.name) else own
        own = None if own and own.given != given and own.ends_before(name) else own
    elif latest is not None and latest.ends_before(name):
        own = None
    if own is None:
        taken = {known.index for known in calls}
        index = given if isinstance(given, int) and given not in taken else max(taken, default=-1) + 1
        calls.append(own := _Call(index, given))
    again = {"id": call_id == own.id, "name": name == own.name}
    for holder in (call, function):
        for key in [key for key, value in holder.items() if value is None or (value and again.get(key))]:
            del holder[key]
    own.id, own.name = call_id or own.id, own.name + (function.get("name") or "")
    own.arguments.append(arguments)
    call["index"] = own.index


class PartNumbers:
    """Gives each block of a streamed message, or item of a response, a place of its own, as `CallNumbers` does.

    ``field`` is where events have the place; an item is known by its id too.
    """

    def __init__(self, field: str) -> None:
        self._field = field
        #: By an item's id, by the place that its server gave last, and by None for the latest part.
        self._places: dict[object, int] = {}

    def number(self, event: Json) -> None:
        """Set the place of the next event's part."""
        kind, given = str(event.get("type")), event.get(self._field)
        part_id = next((item.get("id") for item in objects([event.get("item")])), event.get("item_id"))
        if kind in {"content_block_start", "response.output_item.added"}:
            taken = self._places.values()
            place = given if isinstance(given, int) and given not in taken else max(taken, default=-1) + 1
            self._places |= dict.fromkeys((None, given, part_id), place)
        known = self._places.get(part_id or given, self._places.get(given))
        if known is not None and (kind.startswith("content_block") or {self._field, "item", "item_id"} & event.keys()):
            event[self._field] = known
