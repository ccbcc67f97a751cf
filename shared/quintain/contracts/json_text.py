"""A JSON object whose members keep the text that their sender wrote: numbers and escapes are passed on as they came."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from json.decoder import WHITESPACE, scanstring  # type: ignore[attr-defined]
from typing import Any, NamedTuple, NoReturn

from quintain.contracts.values import non_finite_path, shorten
from quintain.errors import BadRequest


class JsonText(NamedTuple):
    """A JSON object: the value of each member, and the text that was sent for it.

    Example::

        body = parse_json_object(b'{"temperature": 1.0, "model": "x"}')
        body.without("model").text  # '{"temperature":1.0}'
    """

    values: Mapping[str, Any]
    texts: Mapping[str, str]

    @property
    def text(self) -> str:
        """The object as JSON."""
        return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in self.texts.items()) + "}"

    def without(self, *names: str) -> JsonText:
        """Return the object without these members."""
        values = {name: value for name, value in self.values.items() if name not in names}
        return JsonText(values, {name: self.texts[name] for name in values})

    def with_members(self, members: Mapping[str, Any]) -> JsonText:
        """Return the object with these members, in place of those of the same name."""
        texts = {name: _ENCODER.encode(value) for name, value in members.items()}
        return JsonText({**self.values, **members}, {**self.texts, **texts})


def json_text(value: Mapping[str, Any]) -> JsonText:
    """Return the text of a value that is no text yet."""
    return JsonText({}, {}).with_members(value)


def parse_json_object(data: bytes, *, inner: str | None = None) -> tuple[JsonText, JsonText | None]:
    """Parse a JSON object in UTF-8, and its member ``inner``, an object too, with the texts of its own members.

    Raises `BadRequest` for what is no JSON object, and whatever `parse_json` refuses.
    """
    text = _decode(data)
    with _as_bad_request(text):
        whole, end, found = _parse_members(text, _skip(text, 0), inner)
        if _skip(text, end) != len(text):
            raise BadRequest("The body is not JSON: more follows its end")
        _check_unicode(text, whole.values)
    return whole, found


def parse_json(data: bytes) -> object:
    """Parse JSON in UTF-8.

    Raises `BadRequest` for what is no JSON, for a name that stands twice in any object, for half of a surrogate pair,
    for a number that is not finite, which it names, or has too many digits, and for a text that is nested too deeply.
    """
    text = _decode(data)
    with _as_bad_request(text):
        value: object = _DECODER.decode(text)
        _check_unicode(text, value)
    return value


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadRequest("The body is not JSON in UTF-8") from None


@contextlib.contextmanager
def _as_bad_request(text: str) -> Iterator[None]:
    try:
        yield
    except json.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply") from None
    except OverflowError:
        raise _not_finite(text) from None
    except UnicodeEncodeError:
        raise BadRequest("The body holds text that is no Unicode: half of a surrogate pair") from None
    except ValueError:
        # Python reads no integer of more than 4300 digits.
        raise BadRequest("The body holds a number with too many digits") from None


def _check_unicode(text: str, value: object) -> None:
    if _ESCAPED_SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()


def _not_finite(text: str) -> BadRequest:
    path = None
    with contextlib.suppress(ValueError):
        # Parsed again to find the place: only this error needs it.
        path = non_finite_path(json.loads(text))
    fault = BadRequest(f"{shorten(path or 'The body')}: it must be a finite number")
    fault.parameter = path and shorten(path)
    return fault


def _parse_members(text: str, at: int, inner: str | None) -> tuple[JsonText, int, JsonText | None]:
    if text[at : at + 1] != "{":
        raise BadRequest("The body is not a JSON object")
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    found: JsonText | None = None
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return JsonText(values, texts), at + 1, None
    while True:
        name, start = _parse_name(text, at)
        if name in values:
            raise _duplicate(name)
        if name == inner and text[start : start + 1] == "{":
            found, at, _ = _parse_members(text, start, None)
            values[name] = found.values
        else:
            values[name], at = _DECODER.raw_decode(text, start)
        texts[name] = text[start:at]
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return JsonText(values, texts), at + 1, found
        at = _skip(text, _expect(text, at, ","))


def _parse_name(text: str, at: int) -> tuple[str, int]:
    """Return the name of the member that begins here, and where its value begins."""
    name, at = scanstring(text, _expect(text, at, '"'), True)  # noqa: FBT003 -- json's own signature
    return name, _skip(text, _expect(text, _skip(text, at), ":"))


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise json.JSONDecodeError(f"Expecting {character!r}", text, at)
    return at + 1


def _skip(text: str, at: int) -> int:
    return WHITESPACE.match(text, at).end()  # type: ignore[no-any-return]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        raise _duplicate(next(name for name, _ in pairs if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
    return members


def _duplicate(name: str) -> BadRequest:
    return BadRequest(f"{shorten(name)}: the name stands twice in one object")


def _parse_float(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise OverflowError
    return number


def _reject_constant(_: str) -> NoReturn:
    raise OverflowError


#: One each for all texts: `json.loads` and `json.dumps` make one for each where they have options.
_ENCODER = json.JSONEncoder(allow_nan=False)

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_reject_constant, parse_float=_parse_float)
