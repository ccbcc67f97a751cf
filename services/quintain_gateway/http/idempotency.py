"""Idempotency keys: a request repeated under the same key is the same call and is charged once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request

from quintain.errors import BadRequest
from quintain_gateway.http.headers import IDEMPOTENCY_KEY_HEADER
from quintain_gateway.http.schemas import format_field_names

#: The longest idempotency key: a request id's length, less the number of a choice.
MAX_KEY_LENGTH = 120


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A request's idempotency key, and whether the client gave it. A call under a key of the client's own goes on when
    the client leaves, for the retry to be answered; any other is taken back."""

    text: str
    is_from_client: bool

    def request_ids(self, choice_count: int) -> list[str]:
        """The request id of each choice."""
        return [self.text, *(f"{self.text}.{choice}" for choice in range(1, choice_count))]

    def headers(self, ignored_fields: Iterable[str]) -> dict[str, str]:
        """The headers of an answer: under which request id it was asked, and what of the request was not carried."""
        ignored_names = format_field_names(ignored_fields)
        headers = {"x-quintain-request-id": self.text}
        return {**headers, "x-quintain-ignored": ignored_names} if ignored_names else headers


def read_idempotency_key(request: Request) -> IdempotencyKey:
    """The client's idempotency key, else a new one. Raises `BadRequest`."""
    value = request.headers.get(IDEMPOTENCY_KEY_HEADER)
    if value is None:
        return IdempotencyKey(secrets.token_urlsafe(16), is_from_client=False)
    if not 1 <= len(value) <= MAX_KEY_LENGTH or not value.isprintable():
        raise BadRequest(f"Idempotency-Key: 1 to {MAX_KEY_LENGTH} printable characters")
    return IdempotencyKey(value, is_from_client=True)
