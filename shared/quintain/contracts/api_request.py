"""A request in a vendor's own JSON, whose numbers and escapes are carried as sent (``docs/protocol/requests.md``)."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from json.decoder import WHITESPACE, scanstring  # type: ignore[attr-defined]
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn, cast, get_args

from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.values import MAX_GRADER_LENGTH, non_finite_path, shorten
from quintain.errors import BadRequest

#: The endpoints of OpenAI's API, and Anthropic's ``messages``.
ApiName = Literal["chat", "responses", "completions", "embeddings", "messages"]

API_NAMES: Final = frozenset(get_args(ApiName))

#: Headers of a vendor's API that change an answer. No other header of a caller's reaches a provider.
CARRIED_HEADERS: Final = frozenset({"anthropic-beta", "anthropic-version", "openai-beta"})


class ApiRequest(NamedTuple):
    """A request in the words of a vendor's API.

    ``body`` is the caller's JSON without ``model``, ``stream`` and ``stream_options``: the same question is the same
    call, whether its target is named or the session's default, and whether it is streamed or not. ``target`` is the
    name of the target, where the caller gives one. ``headers`` are among `CARRIED_HEADERS`.
    ``ignore_unsupported``, which is not published, is whether the target or the session lets calls be made without
    what a provider lacks. ``grader`` is the name of the grader that makes the call, as in an `InvokeRequest`.

    Example::

        ApiRequest("chat", json_text({"messages": [{"role": "user", "content": "2 + 2?"}]}), target="gpt4o")
    """

    api: ApiName
    body: JsonText
    headers: Mapping[str, str] = MappingProxyType({})
    target: str | None = None
    ignore_unsupported: bool = False
    grader: str | None = None

    @property
    def requested_target(self) -> str | None:
        """The name of the target in the request, or None."""
        return self.target

    def to_wire(self, without: set[str] | None = None) -> bytes:
        """Return the request as UTF-8 JSON, without members of these names."""
        fields: dict[str, str] = {"api": json.dumps(self.api)}
        if self.target is not None:
            fields["target"] = json.dumps(self.target)
        if self.grader is not None:
            fields["grader"] = json.dumps(self.grader)
        if self.headers:
            fields["headers"] = json.dumps(dict(self.headers), sort_keys=True)
        fields["body"] = self.body.text
        members = (f'"{name}":{text}' for name, text in fields.items() if name not in (without or ()))
        try:
            return ("{" + ",".join(members) + "}").encode()
        except UnicodeEncodeError:
            raise BadRequest("The request holds text that is no Unicode: half of a surrogate pair") from None


def read_api_request(wire: bytes) -> ApiRequest | None:
    """Read a published body; None where it has no member ``api``. Raises `BadRequest`, which names what is wrong."""
    whole, body = parse_json_object(wire, inner="body")
    values: Mapping[str, Any] = whole.values
    if values.get("api") is None:
        return None
    api, headers = values.get("api"), _read_headers(values.get("headers") or {})
    target, grader = values.get("target"), values.get("grader")
    if not isinstance(api, str) or api not in API_NAMES:
        raise BadRequest(f"api: it is one of {', '.join(sorted(API_NAMES))}")
    if body is None:
        raise BadRequest("body: it is a JSON object")
    if target is not None and not isinstance(target, str):
        raise BadRequest("target: it is a text")
    if grader is not None and not (isinstance(grader, str) and 0 < len(grader) <= MAX_GRADER_LENGTH):
        raise BadRequest(f"grader: it is a text of 1 to {MAX_GRADER_LENGTH} characters")
    if grader is not None and "\0" in grader:
        raise BadRequest("grader: it holds U+0000")
    for name in ("model", "stream", "stream_options"):
        if name in body.values:
            raise BadRequest(f"body.{name}: it is no part of the body; the routing key names the target")
    return ApiRequest(cast("ApiName", api), body, headers, target, grader=grader)


def _read_headers(headers: object) -> Mapping[str, str]:
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise BadRequest("headers: it is an object of texts")
    for name, value in headers.items():
        if name not in CARRIED_HEADERS:
            raise BadRequest(f"headers: {shorten(name)!r} is none of {', '.join(sorted(CARRIED_HEADERS))}")
        if not value.isascii() or not value.isprintable():
            raise BadRequest(f"headers.{name}: it is printable ASCII")
    return headers


def read_request(wire: bytes) -> InvokeRequest | ApiRequest:
    """Read the body of a published request: a conversation, or a request in the words of a vendor's API.

    Raises `BadRequest`, which names what is wrong.
    """
    return (read_api_request(wire) if b'"api"' in wire else None) or InvokeRequest.from_wire(wire)


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
        # A byte order mark before it is no part of the text (RFC 8259, 8.1).
        return data.decode("utf-8-sig")
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
