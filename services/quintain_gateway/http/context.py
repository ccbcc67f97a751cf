"""The context of one HTTP request: its id for logs, its route, its session and the code of its error."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from quintain.contracts.proof import mask_tokens

#: The route of requests that match no API: their paths must not become label values or log fields.
UNMATCHED_ROUTE = "elsewhere"

_VALID_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(slots=True)
class RequestContext:
    """The facts about one HTTP request that the access log, the metrics and the span show.

    ``id`` is the value of ``x-request-id``; it is not an idempotency key. ``route`` is a path template and
    ``session_id`` the public id of the session; ``code`` is the code of the error response. ``session_key`` tells
    sessions apart by their whole tokens, which may not be valid; it is never shown. ``on_end`` is called when the
    response has ended, ``on_disconnect`` when the client disconnects before. The last five may be empty.
    """

    id: str
    route: str = UNMATCHED_ROUTE
    session_id: str = ""
    code: str = ""
    session_key: str = ""
    on_end: Callable[[], None] | None = None
    on_disconnect: Callable[[], object] | None = None
    is_disconnected: bool = False

    def disconnect(self) -> None:
        """Note that the client disconnected before its response had ended."""
        self.is_disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()


def valid_or_new_id(client_value: str | None) -> str:
    """Return the client's id for its request if it is safe to log and to send back, else a new random id.

    ``client_value`` is the ``x-request-id`` header. A value that contains a token is not safe.
    """
    if client_value is not None and _VALID_ID.fullmatch(client_value) and mask_tokens(client_value) == client_value:
        return client_value
    return secrets.token_hex(8)


def header_in_scope(scope: Scope, name: bytes) -> str | None:
    """Return the first header of this name, in lower case; None if there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def context_of(request: Request) -> RequestContext:
    """Return the context of this request."""
    return context_in_scope(request.scope)


def context_in_scope(scope: Scope) -> RequestContext:
    """Return the context stored in an ASGI scope; store a new one if there is none."""
    state = scope.setdefault("state", {})
    if "context" not in state:
        state["context"] = RequestContext(valid_or_new_id(None))
    context = state["context"]
    assert isinstance(context, RequestContext)
    return context
