"""Every message: of which type, with which headers, and which contract is its body."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic.json_schema import models_json_schema

from quintain.asyncapi.headers import (
    Node,
    answer_headers,
    call_headers,
    notice_headers,
    operation_headers,
    question_headers,
)
from quintain.contracts.hosted import RUN_HEARS, RUN_SAYS, RunHears, RunSays
from quintain.contracts.invoke import Chunk, FaultReply, Progress
from quintain.contracts.ledger import CallsTakenBack
from quintain.contracts.message import Message
from quintain.routes import CHUNK_TYPE, INVOKE, PROGRESS_TYPE, ROUTES, Route
from quintain.topology import METADATA

#: Where the schemas are, in the document.
_REF = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Spoken:
    """One kind of message. ``kind`` is AMQP's property ``type``, which says how the body is to be read."""

    name: str
    kind: str
    body: type[Message]
    headers: Node

    def node(self) -> Node:
        """The message object."""
        said = (self.body.__doc__ or "").split("\n\n")[0].split()
        asked_or_answered = "correlation_id" in self.headers["properties"]
        return {
            "name": self.name,
            "contentType": "application/json",
            "summary": " ".join(said),
            **({"correlationId": {"location": "$message.header#/correlation_id"}} if asked_or_answered else {}),
            "headers": self.headers,
            "payload": {"$ref": _REF.format(model=self.body.__name__)},
            "bindings": {"amqp": {"messageType": self.kind, "bindingVersion": "0.3.0"}},
        }


def ask_of(route: Route[Any, Any]) -> Spoken:
    """The question of a route. The kind is what its messages carry: on ``quintain.invoke`` the key is a target's."""
    if route is INVOKE:
        headers = call_headers()
    elif not answers(route):
        headers = notice_headers()
    else:
        headers = operation_headers() if route.exchange is METADATA else question_headers()
    return Spoken(f"{route.name}.ask", route.key or route.name, route.asks, headers)


def result_of(route: Route[Any, Any]) -> Spoken:
    """The answer of a route that has one."""
    return Spoken(f"{route.name}.result", "result", route.answers, answer_headers())


def answers(route: Route[Any, Any]) -> bool:
    """Whether anybody answers."""
    return route.answers is not Message


FAULT = Spoken("fault", "fault", FaultReply, answer_headers())
CHUNK = Spoken("chunk", CHUNK_TYPE, Chunk, answer_headers())
PROGRESS = Spoken("progress", PROGRESS_TYPE, Progress, answer_headers())
TAKEN_BACK = Spoken("calls_taken_back", "cancel", CallsTakenBack, notice_headers())
SAYS = Spoken(RUN_SAYS, RUN_SAYS, RunSays, notice_headers())
HEARS = Spoken(RUN_HEARS, RUN_HEARS, RunHears, notice_headers())

#: Everything that is said.
SPOKEN: tuple[Spoken, ...] = (
    *(ask_of(route) for route in ROUTES),
    *(result_of(route) for route in ROUTES if answers(route)),
    *(FAULT, CHUNK, PROGRESS, TAKEN_BACK, SAYS, HEARS),
)


def schemas(spoken: Iterable[Spoken]) -> Node:
    """The schemas of their bodies, with all they are made of. ``null`` is as good as absent; unknown keys are
    ignored."""
    models = dict.fromkeys(one.body for one in spoken)
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    found: Node = definitions["$defs"]
    return found
