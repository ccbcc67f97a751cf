"""The context of one HTTP request: its id for logs, its route, its session and the code of its error."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from quintain.contracts.token import mask_tokens

#: Of requests for which no API stands: whatever was asked, it is no name in a metric or a log.
UNMATCHED_ROUTE = "elsewhere"

_VALID_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(slots=True)
class RequestContext:
    """``id`` travels in ``x-request-id``; it is no idempotency key. ``route`` is a template, ``session_id`` public."""

    id: str
    route: str = UNMATCHED_ROUTE
    session_id: str = ""
    code: str = ""


def valid_or_new_id(client_value: str | None) -> str:
    """The client's own id for its request where that is fit to be logged and sent back, else a new one."""
    if client_value is not None and _VALID_ID.fullmatch(client_value) and mask_tokens(client_value) == client_value:
        return client_value
    return secrets.token_hex(8)


def context_of(request: Request) -> RequestContext:
    """The visit that this request is."""
    return context_in_scope(request.scope)


def context_in_scope(scope: Scope) -> RequestContext:
    """The visit of an ASGI scope; one that nobody kept a journal of gets its own."""
    context = scope.setdefault("state", {}).setdefault("visit", RequestContext(valid_or_new_id(None)))
    assert isinstance(context, RequestContext)
    return context
