"""Parts of the messages of hosted targets (`quintain.contracts.hosting`), and the lines of a recorded trajectory.

A trajectory is one file of JSON lines for each run. The first line is a `TrajectoryStart`, each further one a
`TrajectoryLine`. A file without a line of kind "end" is that of a run that goes on, while its writer holds a lock on
it, or of a run whose controller ended first.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from quintain.contracts.message import Message

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
