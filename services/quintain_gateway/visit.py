"""One HTTP request as the gateway remembers it: an id for people and logs, and what came of it."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from quintain.contracts.token import mask

#: Of requests for which no API stands: whatever was asked, it is no name in a metric or a log.
ELSEWHERE = "elsewhere"

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(slots=True)
class Visit:
    """``id`` travels in ``x-request-id``; it is no idempotency key. ``route`` is a template, ``session_id`` public."""

    id: str
    route: str = ELSEWHERE
    session_id: str = ""
    code: str = ""


def visit_id(offered: str | None) -> str:
    """The client's own id for its request where that is fit to be logged and sent back, else a new one."""
    if offered is not None and _SANE_ID.fullmatch(offered) and mask(offered) == offered:
        return offered
    return secrets.token_hex(8)


def visit_of(request: Request) -> Visit:
    """The visit that this request is."""
    return visit_in(request.scope)


def visit_in(scope: Scope) -> Visit:
    """The visit of an ASGI scope; one that nobody kept a journal of gets its own."""
    visit = scope.setdefault("state", {}).setdefault("visit", Visit(visit_id(None)))
    assert isinstance(visit, Visit)
    return visit
