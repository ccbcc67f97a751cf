"""The lines of a recorded trajectory: one file of JSON lines for each run of a hosted target.

The first line is a `TrajectoryStart`, each further one a `TrajectoryLine`. A file without a line of kind "end" is that
of a run that goes on, while its writer holds a lock on it, or of a run whose controller ended first.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quintain.contracts.message import Message

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
