"""Messages of hosted targets: leasing an instance, requests to it, and the items of its runs.

A controller requests a lease on ``quintain.host`` under the target's name. A host with a free slot creates an instance
and replies with the lease's private routing key, to which all further requests go. A run's output is published to the
controller's own queue behind ``quintain.run``, numbered, because AMQP guarantees no order across a reconnect.

These are not part of the public protocol: hosts and controllers must be of one release.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from quintain.contracts.message import Message

#: The version of these messages: a host answers another one with a ``bad_request`` that names both.
REMOTE_TARGET_VERSION = 1

#: The message types of what a run says to its controller, and of what it hears from it.
RUN_OUTPUT_TYPE = "run_says"
RUN_INPUT_TYPE = "run_hears"

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


class TargetDescriptor(Message):
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


class OpenLease(Message):
    """Lease me a fresh instance of the target this message is routed to."""

    controller_id: str
    version: int = REMOTE_TARGET_VERSION


class LeaseOpened(Message):
    """The lease, or why the factory gave none. ``key`` is where everything asked of the instance goes."""

    lease_id: str = ""
    key: str = ""
    host_id: str = ""
    descriptor: TargetDescriptor | None = None
    failure: RemoteFailure | None = None


class LeaseRequest(Message):
    """The base of what is asked of a leased instance: an id, under which the same question is answered alike."""

    lease_id: str
    request_id: str


class SetConfig(LeaseRequest):
    """Fill a slot."""

    name: str
    value: str


class Query(LeaseRequest):
    """Ask after a run."""

    name: str
    params: dict[str, str] = Field(default_factory=dict)


class StartRun(LeaseRequest):
    """Run once; what it says comes to exchange ``quintain.run`` under ``run_key``. ``kinds`` are the event classes that
    the controller can read."""

    run_id: str
    run_key: str
    kinds: list[str]


class CancelRun(LeaseRequest):
    """Stop this run: whoever awaited it has gone."""

    run_id: str


class BareLeaseRequest(LeaseRequest):
    """Describe, reset, tear down, renew: what needs no more than its type."""


class LeaseResult(Message):
    """The answer to everything asked: a text where there is one, or what was raised."""

    value: str | None = None
    descriptor: TargetDescriptor | None = None
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


class RunItem(Message):
    """One thing a run said, in its place: ``seq`` counts from 1 without a gap."""

    seq: int
    what: Literal["emit", "send", "log", "end"]
    event: WireEvent | None = None
    log: LogLine | None = None
    #: Of an ``end``: what the run raised, or nothing where it returned.
    failure: RemoteFailure | None = None


class RunOutput(Message):
    """From the host to the controller: what is new, or what was never acknowledged, in order.

    Without items it is a heartbeat. ``said`` is the last number given out, so that a loss is noticed.
    """

    run_id: str
    said: int
    items: list[RunItem] = Field(default_factory=list)


class EventReply(Message):
    """The response to the event that was sent as number ``seq``."""

    seq: int
    response: WireResponse


class RunInput(Message):
    """From the controller to the host: responses, and up to which number everything has come.

    ``again``: numbers are missing, send from ``heard`` + 1. Without answers it is a heartbeat.
    """

    lease_id: str
    run_id: str
    heard: int
    again: bool = False
    answers: list[EventReply] = Field(default_factory=list)
