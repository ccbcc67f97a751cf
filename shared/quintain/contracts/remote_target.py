"""Messages of hosted targets: leases, requests, the items of runs, and the lines of a recorded trajectory.

A controller requests a lease on ``quintain.host`` under the target's name. A host with a free slot creates an instance
and replies with the lease's private routing key, to which all further requests go. A run's output is published to the
controller's own queue behind ``quintain.run``, numbered, because AMQP guarantees no order across a reconnect.

Hosts and controllers must be of one release: these messages are no part of the public protocol.

A trajectory is one file of JSON lines for each run. The first line is a `TrajectoryStart`, each further one a
`TrajectoryLine`. A file without a line of kind "end" is that of a run that goes on, while its writer holds a lock on
it, or of a run whose controller ended first.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from quintain.contracts.message import Message
from quintain.contracts.values import RoutingKey

#: The version of these messages; a host rejects any other with a ``bad_request`` that names both versions.
REMOTE_TARGET_VERSION = 3

#: The AMQP types of a run's output (host to controller) and input (controller to host).
RUN_OUTPUT_TYPE = "run_says"
RUN_INPUT_TYPE = "run_hears"

#: The AMQP type of `LeaseOffered`.
LEASE_OFFER_TYPE = "lease_offer"

#: A tag's path: its own name, its parent's, up to the root's. Names are unique within a domain.
TagPath = list[str]


class WireParam(Message):
    """A parameter of a query."""

    name: str
    description: str


class WireConfigSpec(Message):
    """A configuration slot of a target."""

    name: str
    domain: TagPath
    description: str


class WireQuerySpec(Message):
    """A query that a target answers after a run."""

    name: str
    description: str
    params: list[WireParam] = Field(default_factory=list)


class WireControllable(Message):
    """A controllable with all its fields, because a run may use controllables that the target never declared."""

    name: str
    domain: TagPath
    description: str = ""
    value_type: str = "text"


class WireObservable(Message):
    """An observable with all its fields."""

    name: str
    domain: TagPath
    description: str = ""
    observable_type: str = "text"


class WireObservableValue(Message):
    """An observable and its value as JSON text in Python's dialect: ``NaN`` and lone surrogates are allowed, and an
    object with the key ``$type`` is a value of a type that JSON does not have.
    """

    observable: WireObservable
    content: str = "null"


class TargetDescriptor(Message):
    """Everything a target exposes in its current configuration."""

    target_class: str
    tags: list[TagPath]
    config_specs: list[WireConfigSpec]
    query_specs: list[WireQuerySpec]
    controllables: list[WireControllable]
    observables: list[WireObservableValue]
    #: Where the host found each tag, in the order of ``tags``: ``module:attribute``, or "" for no attribute.
    tag_locations: list[str] = Field(default_factory=list)


class RemoteFailure(Message):
    """The wire format of an exception: class name, message, traceback as text, and fields of known classes.

    ``token``: the exception originated on the other side, which raises the same object again.
    """

    type: str
    message: str
    traceback: str = ""
    values: dict[str, JsonValue] | None = None
    token: str | None = None
    #: The arguments of a built-in exception, as JSON text like ``content`` of `WireEvent`.
    arguments: str | None = None
    #: The exceptions of an ``ExceptionGroup``.
    exceptions: list[RemoteFailure] | None = None


class OpenLease(Message):
    """Lease a new instance of the target named by the routing key."""

    controller_id: str
    version: int = REMOTE_TARGET_VERSION


class LeaseOpened(Message):
    """The lease, or the exception of the target's factory; ``key`` is the routing key for the instance's requests.

    ``fingerprint`` is that of the host's factory, or None if the host computes none.
    """

    lease_id: str = ""
    key: RoutingKey = ""
    host_id: str = ""
    descriptor: TargetDescriptor | None = None
    failure: RemoteFailure | None = None
    fingerprint: str | None = None


class LeaseOffered(Message):
    """Sent to a controller before its instance is created: a slot has taken its request.

    ``process_id`` is the process of the slot, and ``supervisor_key`` the routing key of the process that answers for
    it.
    """

    host_id: str = ""
    supervisor_key: RoutingKey = ""
    process_id: str = ""


class WatchProcess(Message):
    """Ask the supervisor of a slot's process whether it runs; it sends the end of the process to who asked last."""

    process_id: str


class ProcessStatus(Message):
    """Whether a slot's process runs: ``ended`` says how it ended, and is empty while it runs.

    ``log_tail`` is the end of its standard error. ``is_known`` is False where the supervisor never started it.
    """

    is_known: bool = True
    ended: str = ""
    log_tail: str = ""


class DescribeHost(Message):
    """Ask for the factory of the target named by the routing key. A host with a free slot replies; no lease begins."""


class HostDescribed(Message):
    """The fingerprint of the host's factory: of its name, and of the bytes of its module and dependencies."""

    host_id: str = ""
    fingerprint: str | None = None


class LeaseRequest(Message):
    """Base of all requests to a leased instance; a repeated ``request_id`` is answered with the same result."""

    lease_id: str
    request_id: str


class SetConfig(LeaseRequest):
    """Set configuration slots, in order; with ``described`` the answer has the target's description after that."""

    values: dict[str, str]
    described: bool = False


class Query(LeaseRequest):
    """Query the target after a run."""

    name: str
    params: dict[str, str] = Field(default_factory=dict)


class StartRun(LeaseRequest):
    """Start a run, whose output goes to exchange ``quintain.run`` with routing key ``run_key``.

    ``kinds`` are the event classes that the controller can decode.
    """

    run_id: str
    run_key: RoutingKey
    kinds: list[str]


class CancelRun(LeaseRequest):
    """Cancel a run, because its controller stopped waiting for it."""

    run_id: str


class BareLeaseRequest(LeaseRequest):
    """A request without further fields: describe, reset, renew."""


class Teardown(LeaseRequest):
    """Tear the target down; with ``reset`` its reset is called before, and an error of that is only logged."""

    reset: bool = False


class LeaseResult(Message):
    """The reply to every request on a lease: a text value, a descriptor, or the exception that was raised."""

    value: str | None = None
    descriptor: TargetDescriptor | None = None
    failure: RemoteFailure | None = None


class WireEvent(Message):
    """An event of a run.

    ``kind`` is its class name, ``at`` is in seconds since the epoch on the host's clock, ``content`` is JSON text as
    in `WireObservableValue`.
    """

    kind: str
    event_id: str
    at: float
    domain: TagPath | None = None
    controllable: WireControllable | None = None
    observable: WireObservable | None = None
    request: str | None = None
    answer: str | None = None
    content: str | None = None
    #: Additional fields of a registered event class, each as JSON text.
    extra: dict[str, str] | None = None


class WireResponse(Message):
    """The response to an event, or the exception that the controller's handler raised."""

    kind: str = ""
    controllable: WireControllable | None = None
    value: str | None = None
    extra: dict[str, str] | None = None
    failure: RemoteFailure | None = None


class LogLine(Message):
    """A log record of the target, for the controller's log."""

    logger: str
    level: int
    text: str
    at: float


class RunItem(Message):
    """One output item of a run; ``seq`` counts from 1 without gaps."""

    seq: int
    what: Literal["emit", "send", "log", "end"]
    event: WireEvent | None = None
    log: LogLine | None = None
    #: For ``end``: the exception of the run, or None if it returned.
    failure: RemoteFailure | None = None


class RunOutput(Message):
    """Output of a run from host to controller: new items, or items that were not acknowledged, in order.

    Without items it is a heartbeat. ``said`` is the highest number assigned so far, which reveals lost items.
    """

    run_id: str
    said: int
    items: list[RunItem] = Field(default_factory=list)


class EventReply(Message):
    """The response to the event with number ``seq``."""

    seq: int
    response: WireResponse


class RunInput(Message):
    """Input of a run from controller to host: responses, and the acknowledgement of all items up to ``heard``.

    ``again`` requests all items after ``heard`` again, because some are missing. Without answers it is a heartbeat.
    """

    lease_id: str
    run_id: str
    heard: int
    again: bool = False
    answers: list[EventReply] = Field(default_factory=list)


#: The folder of trajectories within a results folder.
TRAJECTORY_FOLDER = "trajectories"

TRAJECTORY_SUFFIX = ".jsonl"

#: The version of these lines.
TRAJECTORY_VERSION = 1

#: A recorded text has at most so many characters, a recorded name so many.
MAX_RECORDED_CHARACTERS, MAX_NAME_CHARACTERS = 20_000, 200

#: A file has at most so many bytes, and one line at the end.
MAX_TRAJECTORY_BYTES = 16 * 2**20


class TrajectoryStart(Message):
    """The first line: what ran, where, and when it began (ISO 8601, UTC); ``title`` is the controller's word for it."""

    schema_version: int = TRAJECTORY_VERSION
    target: str
    title: str = ""
    host_id: str = ""
    lease_id: str = ""
    started_at: str


class TrajectoryLine(Message):
    """What happened, ``ms`` milliseconds after the start on the controller's clock.

    - ``emit``: an event that is not answered; ``send``: one that awaits its reply, which has the same ``seq``.
    - ``reply``: the controller's reply; ``log``: a log record of the target.
    - ``limit``: the file is full; ``skipped`` of the last line counts the lines that were left out.
    - ``end``: the run ended, by the exception in the text ``error`` if it has one.

    ``type`` is the class of the event or response, or the level of a log record; ``name`` the controllable, the
    observable or the logger; ``tag`` the path of its security domain, its own name first. ``shortened`` has the full
    length in characters of each text that was shortened.
    """

    kind: Literal["emit", "send", "reply", "log", "limit", "end"]
    ms: float
    seq: int | None = None
    type: str = ""
    name: str = ""
    tag: list[str] = Field(default_factory=list)
    texts: dict[str, str] = Field(default_factory=dict)
    shortened: dict[str, int] = Field(default_factory=dict)
    skipped: int = 0
