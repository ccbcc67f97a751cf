"""The key under which a request is made: a client's retry under the same one is the same call."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request

from quintain.errors import BadRequest
from quintain_gateway.bodies import named
from quintain_gateway.terms import KEY_HEADER

#: The longest idempotency key: a request id's length, less the number of a choice.
MOST_KEY = 120


@dataclass(frozen=True, slots=True)
class Key:
    """A request's idempotency key, and whether the client gave it. A call under a key of the client's own goes on when
    the client leaves, for the retry to be answered; any other is taken back."""

    text: str
    given: bool

    def request_ids(self, choices: int) -> list[str]:
        """The request id of each choice."""
        return [self.text, *(f"{self.text}.{choice}" for choice in range(1, choices))]

    def headers(self, ignored: Iterable[str]) -> dict[str, str]:
        """The headers of an answer: under which request id it was asked, and what of the request was not carried."""
        names = named(ignored)
        headers = {"x-quintain-request-id": self.text}
        return {**headers, "x-quintain-ignored": names} if names else headers


def key_of(request: Request) -> Key:
    """The client's idempotency key, else a new one. Raises `BadRequest`."""
    given = request.headers.get(KEY_HEADER)
    if given is None:
        return Key(secrets.token_urlsafe(16), given=False)
    if not 1 <= len(given) <= MOST_KEY or not given.isprintable():
        raise BadRequest(f"Idempotency-Key: 1 to {MOST_KEY} printable characters")
    return Key(given, given=True)
