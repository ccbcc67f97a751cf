"""The messages of a lease, between the driver of a hosted target and its host (``docs/protocol/hosts.md``).

A lease is one conversation. Either side numbers its items from 1, and says in each message which item of the other side
it has processed last. A message without items is a heartbeat.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from quintain.contracts.message import Message
from quintain.contracts.remote_target import RemoteFailure, TargetDescriptor, WireEvent, WireResponse

#: The version of these messages; a host refuses any other one with a ``bad_request`` that names both.
REMOTE_TARGET_VERSION = 4

#: The AMQP type of all messages of a lease.
LEASE_TYPE = "lease"


class LeaseRequest(Message):
    """Base class of what a driver asks of a host: each is answered with one `LeaseResult`.

    ``traceparent`` is that of the span that asks.
    """

    type: str
    traceparent: str | None = None


class OpenLease(LeaseRequest):
    """The first item of a lease: create an instance."""

    type: Literal["open"] = "open"
    version: int = REMOTE_TARGET_VERSION
    #: The call that it is for, which the host's log names.
    request_id: str | None = None


class SetConfig(LeaseRequest):
    """Set configuration slots, in order."""

    type: Literal["set_config"] = "set_config"
    values: dict[str, str]


class DescribeTarget(LeaseRequest):
    """Describe the target in its current configuration."""

    type: Literal["describe"] = "describe"


class QueryTarget(LeaseRequest):
    """Query the target after a run."""

    type: Literal["query"] = "query"
    name: str
    params: dict[str, str] = Field(default_factory=dict)


class RunTarget(LeaseRequest):
    """Run the target once, and end the run before if it goes on; the result comes when the run has ended.

    ``events`` are the event classes that the driver can decode.
    """

    type: Literal["run"] = "run"
    events: list[str]


class CancelRun(LeaseRequest):
    """End the run that is item ``to``, because its driver no longer waits for it."""

    type: Literal["cancel"] = "cancel"
    to: int


class ResetTarget(LeaseRequest):
    """Reset the target's ephemeral state."""

    type: Literal["reset"] = "reset"


class Teardown(LeaseRequest):
    """End the lease; it waits for no other request. With ``reset`` the target is reset before."""

    type: Literal["teardown"] = "teardown"
    reset: bool = False


class EventReply(Message):
    """The response to the event of item ``to``."""

    type: Literal["reply"] = "reply"
    to: int
    response: WireResponse


class LeaseOffered(Message):
    """The first item of a host: a slot has taken the request, and creates the instance now."""

    type: Literal["offered"] = "offered"
    host_id: str


class LeaseResult(Message):
    """The one answer to the request of item ``to``: what it asked for, or the exception that it raised."""

    type: Literal["result"] = "result"
    to: int
    failure: RemoteFailure | None = None
    #: For `OpenLease` and `DescribeTarget`.
    descriptor: TargetDescriptor | None = None
    #: For `OpenLease`: the fingerprint of the host's factory, if it computes one.
    fingerprint: str | None = None
    #: For `QueryTarget`.
    value: str | None = None


class EmitEvent(Message):
    """An event of the run that is not answered."""

    type: Literal["emit"] = "emit"
    event: WireEvent


class SendEvent(Message):
    """An event of the run that is answered with a `EventReply`."""

    type: Literal["send"] = "send"
    event: WireEvent


class LogLine(Message):
    """A log record of the target, for the driver's log; ``level`` is a number of Python's logging."""

    type: Literal["log"] = "log"
    logger: str
    level: int
    text: str
    at: float


class LeaseEnded(Message):
    """The lease is over without a teardown, and why; ``log_tail`` is the end of its process's standard error."""

    type: Literal["ended"] = "ended"
    reason: str
    log_tail: str = ""


DriverItem: TypeAlias = Annotated[
    OpenLease | SetConfig | DescribeTarget | QueryTarget | RunTarget | CancelRun | ResetTarget | Teardown | EventReply,
    Field(discriminator="type"),
]
HostItem: TypeAlias = Annotated[
    LeaseOffered | LeaseResult | LeaseEnded | EmitEvent | SendEvent | LogLine, Field(discriminator="type")
]


class LeaseMessage(Message):
    """What both kinds of messages have.

    ``number`` is that of the first item, or of the next one where there is none. ``processed`` is the last item of the
    other side that was processed. With ``again`` all items after the last one that the receiver knows as processed are
    to be published again. A ``number`` of 0 is that of a message beside the numbering, of a process that answers for
    the host.
    """

    number: int
    processed: int
    again: bool = False


class DriverMessage(LeaseMessage):
    """From a driver to its host."""

    items: list[DriverItem] = Field(default_factory=list)


class HostMessage(LeaseMessage):
    """From a host to its driver."""

    items: list[HostItem] = Field(default_factory=list)


class DescribeHost(Message):
    """Ask for the factory of the target named by the routing key. A host with a free slot replies; no lease begins."""


class HostDescribed(Message):
    """The fingerprint of the host's factory: of its name, and of the bytes of its module and dependencies."""

    host_id: str = ""
    fingerprint: str | None = None
