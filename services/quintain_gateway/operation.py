"""How an API describes what it answers: one `Operation` each, from which the gateway's OpenAPI document is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

from quintain.contracts.invoke import FaultReply

Token = Literal["sessionToken", "adminToken"]

SESSION_TOKEN: Token = "sessionToken"  # noqa: S105 -- the name of a scheme, no token
ADMIN_TOKEN: Token = "adminToken"  # noqa: S105 -- the name of a scheme, no token

#: What an answer's body is: a model's JSON, or the name of another media type.
Body = type[BaseModel] | str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. ``query`` holds a JSON schema for each parameter, all of them optional;
    ``streams``: a 200 may be server-sent events, too."""

    method: str
    path: str
    summary: str
    answers: Mapping[int, Body]
    token: Token | None = None
    asks: type[BaseModel] | None = None
    query: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    streams: bool = False


def faults(*statuses: int, body: type[BaseModel] = FaultReply) -> dict[int, Body]:
    """The statuses under which an operation is refused, in this API's words."""
    return dict.fromkeys(statuses, body)
