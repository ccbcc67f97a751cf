"""A request in the words of a vendor's API, carried as its caller wrote it (``docs/protocol/requests.md``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.json_text import JsonText, parse_json_object
from quintain.contracts.values import shorten
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
    what a provider lacks.

    Example::

        ApiRequest("chat", json_text({"messages": [{"role": "user", "content": "2 + 2?"}]}), target="gpt4o")
    """

    api: ApiName
    body: JsonText
    headers: Mapping[str, str] = MappingProxyType({})
    target: str | None = None
    ignore_unsupported: bool = False

    @property
    def requested_target(self) -> str | None:
        """The name of the target in the request, or None."""
        return self.target

    def to_wire(self, without: set[str] | None = None) -> bytes:
        """Return the request as UTF-8 JSON, without members of these names."""
        fields: dict[str, str] = {"api": json.dumps(self.api)}
        if self.target is not None:
            fields["target"] = json.dumps(self.target)
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
    api, headers, target = values.get("api"), _read_headers(values.get("headers") or {}), values.get("target")
    if not isinstance(api, str) or api not in API_NAMES:
        raise BadRequest(f"api: it is one of {', '.join(sorted(API_NAMES))}")
    if body is None:
        raise BadRequest("body: it is a JSON object")
    if target is not None and not isinstance(target, str):
        raise BadRequest("target: it is a text")
    for name in ("model", "stream", "stream_options"):
        if name in body.values:
            raise BadRequest(f"body.{name}: it is no part of the body; the routing key names the target")
    return ApiRequest(cast("ApiName", api), body, headers, target)


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
