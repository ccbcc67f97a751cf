"""Messages of admin operations on a running fleet: pause or resume a target, drain a worker (``protocol.md`` §4)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quintain.contracts.ledger import DrainState, Milliseconds
from quintain.contracts.message import Message
from quintain.contracts.strings import Id

#: Maximum duration of one pause, in seconds.
MAX_PAUSE_SECONDS = 24 * 3600


class PauseTarget(Message):
    """Pause a target for ``for_seconds`` from now; a longer pause that is already in effect stays."""

    target: Id
    for_seconds: Annotated[float, Field(gt=0, le=MAX_PAUSE_SECONDS)]


class ResumeTarget(Message):
    """End a target's pause, regardless of who requested it."""

    target: Id


class TargetPause(Message):
    """Until when a target is paused, if it is; ``now`` is the same clock, in milliseconds since the epoch."""

    target: str
    paused_until: Milliseconds | None = None
    now: Milliseconds


class ListWorkers(Message):
    """List the workers registered in the ledger."""


class DrainWorker(Message):
    """Drain a worker: it takes no more calls, finishes the running ones, and exits."""

    worker_id: Id


class RegisteredWorker(Message):
    """One worker process, live until ``lease_until`` (milliseconds since the epoch); ``running`` counts its calls."""

    worker_id: str
    incarnation: str
    lease_until: Milliseconds
    drain: DrainState
    running: int = 0


class WorkerList(Message):
    """The live workers, and those of the last day that were asked to drain, sorted."""

    workers: list[RegisteredWorker]
    now: Milliseconds
