"""Idempotency keys: a request repeated under the same key is the same call and is charged once."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from starlette.requests import Request

from quintain.errors import BadRequest
from quintain_gateway.http.headers import IDEMPOTENCY_KEY_HEADER

#: The maximum length of an idempotency key: that of a request id, less the suffix for the choice.
MAX_KEY_LENGTH = 120


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The idempotency key of one HTTP request.

    If the client sent the key (``is_from_client``), its calls continue when the client disconnects, so that a retry
    gets their results. Calls under a generated key are cancelled.
    """

    text: str
    is_from_client: bool

    def request_ids(self, choice_count: int) -> list[str]:
        """Return the request id of each choice: the key itself, then the key with a number."""
        return [self.text, *(f"{self.text}.{choice}" for choice in range(1, choice_count))]

    def headers(self) -> dict[str, str]:
        """Return the response header with the request id."""
        return {"x-quintain-request-id": self.text}


def read_idempotency_key(request: Request) -> IdempotencyKey:
    """Return the client's idempotency key, or a new random one. Raises `BadRequest` if the client's is not valid."""
    value = request.headers.get(IDEMPOTENCY_KEY_HEADER)
    if value is None:
        return IdempotencyKey(secrets.token_urlsafe(16), is_from_client=False)
    if not 1 <= len(value) <= MAX_KEY_LENGTH or not value.isprintable():
        raise BadRequest(f"Idempotency-Key: 1 to {MAX_KEY_LENGTH} printable characters")
    return IdempotencyKey(value, is_from_client=True)
