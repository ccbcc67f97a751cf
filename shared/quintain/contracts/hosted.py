"""Hosted targets: leasing one, working with it, and what it says while it runs.

A controller asks ``quintain.host`` for a lease of a target by name; the host that has a free slot builds a fresh
instance and answers with a private key on the same exchange. Everything that is asked of the instance goes to that
key, everything it says in a run comes to the controller's own ``quintain.run.<id>``, numbered: AMQP's order ends at a
reconnect, ours does not.

Version 1 of the wire leaves these to the hosts and controllers of one release.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from quintain.contracts.message import Message

#: The version of these messages: a host answers another one with a ``bad_request`` that names both.
HOSTING_VERSION = 1

#: The message types of what a run says to its controller, and of what it hears from it.
RUN_SAYS = "run_says"
RUN_HEARS = "run_hears"

#: A tag by its path: its own name, its parent's, up to the root's. Names are unique within a domain.
TagPath = list[str]


class WireParam(Message):
    """A query's parameter."""

    name: str
    description: str


class WireConfigSpec(Message):
    """A slot to configure."""

    name: str
    domain: TagPath
    description: str


class WireQuerySpec(Message):
    """A question to ask after a run."""

    name: str
    description: str
    params: list[WireParam] = Field(default_factory=list)


class WireControllable(Message):
    """A controllable, by value: a target may name ones in a run that it never declared."""

    name: str
    domain: TagPath
    description: str = ""
    value_type: str = "text"


class WireObservable(Message):
    """An observable, by value."""

    name: str
    domain: TagPath
    description: str = ""
    observable_type: str = "text"


class WireObservableValue(Message):
    """An observable and what is to be seen: JSON text, as Python writes it (``NaN`` and halves of characters too)."""

    observable: WireObservable
    content: str = "null"


class Descriptor(Message):
    """What a target exposes, as it is configured when it is asked."""

    target_class: str
    tags: list[TagPath]
    config_specs: list[WireConfigSpec]
    query_specs: list[WireQuerySpec]
    controllables: list[WireControllable]
    observables: list[WireObservableValue]


class RemoteFailure(Message):
    """An exception that crosses: its class by name, its words, its traceback as text, and what its class keeps.

    ``token``: the exception came from the other side and is to be raised there again as the very same object.
    """

    type: str
    message: str
    traceback: str = ""
    values: dict[str, JsonValue] | None = None
    token: str | None = None


class AskLease(Message):
    """Lease me a fresh instance of the target this message is routed to."""

    controller_id: str
    version: int = HOSTING_VERSION


class LeaseAnswer(Message):
    """The lease, or why the factory gave none. ``key`` is where everything asked of the instance goes."""

    lease_id: str = ""
    key: str = ""
    host_id: str = ""
    descriptor: Descriptor | None = None
    failure: RemoteFailure | None = None


class Asked(Message):
    """The base of what is asked of a leased instance: an id, under which the same question is answered alike."""

    lease_id: str
    request_id: str


class SetConfig(Asked):
    """Fill a slot."""

    name: str
    value: str


class Query(Asked):
    """Ask after a run."""

    name: str
    params: dict[str, str] = Field(default_factory=dict)


class StartRun(Asked):
    """Run once; what it says comes to exchange ``quintain.run`` under ``run_key``. ``kinds`` are the event classes that
    the controller can read."""

    run_id: str
    run_key: str
    kinds: list[str]


class CancelRun(Asked):
    """Stop this run: whoever awaited it has gone."""

    run_id: str


class Plain(Asked):
    """Describe, reset, tear down, renew: what needs no more than its type."""


class Done(Message):
    """The answer to everything asked: a text where there is one, or what was raised."""

    value: str | None = None
    descriptor: Descriptor | None = None
    failure: RemoteFailure | None = None


class WireEvent(Message):
    """An event. ``kind`` is its class by name; ``at`` is seconds since the epoch on the host's clock; ``content`` is
    JSON text, as Python writes it."""

    kind: str
    event_id: str
    at: float
    domain: TagPath | None = None
    controllable: WireControllable | None = None
    observable: WireObservable | None = None
    request: str | None = None
    answer: str | None = None
    content: str | None = None
    #: The further fields of a class that somebody registered: JSON text each.
    extra: dict[str, str] | None = None


class WireResponse(Message):
    """The response to an event, or what the one who was asked raised."""

    kind: str = ""
    controllable: WireControllable | None = None
    value: str | None = None
    extra: dict[str, str] | None = None
    failure: RemoteFailure | None = None


class LogLine(Message):
    """A log record of the target's, for the controller's log."""

    logger: str
    level: int
    text: str
    at: float


class Said(Message):
    """One thing a run said, in its place: ``seq`` counts from 1 without a gap."""

    seq: int
    what: Literal["emit", "send", "log", "end"]
    event: WireEvent | None = None
    log: LogLine | None = None
    #: Of an ``end``: what the run raised, or nothing where it returned.
    failure: RemoteFailure | None = None


class RunSays(Message):
    """From the host to the controller: what is new, or what was never acknowledged, in order.

    Without items it is a heartbeat. ``said`` is the last number given out, so that a loss is noticed.
    """

    run_id: str
    said: int
    items: list[Said] = Field(default_factory=list)


class Answered(Message):
    """The response to the event that was sent as number ``seq``."""

    seq: int
    response: WireResponse


class RunHears(Message):
    """From the controller to the host: responses, and up to which number everything has come.

    ``again``: numbers are missing, send from ``heard`` + 1. Without answers it is a heartbeat.
    """

    lease_id: str
    run_id: str
    heard: int
    again: bool = False
    answers: list[Answered] = Field(default_factory=list)
