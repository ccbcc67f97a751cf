"""Messages of admin operations on a running fleet: pause or resume a target, drain a worker (``protocol.md`` §4)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quintain.contracts.ledger import DrainState, Milliseconds
from quintain.contracts.message import Message
from quintain.contracts.strings import Id

#: A target is paused for a day at most, in seconds: who wants more asks again.
MAX_PAUSE_SECONDS = 24 * 3600


class PauseTarget(Message):
    """Nobody calls this target for so long from now, or for as long as it is paused already."""

    target: Id
    for_seconds: Annotated[float, Field(gt=0, le=MAX_PAUSE_SECONDS)]


class ResumeTarget(Message):
    """End this target's pause, whoever asked for it."""

    target: Id


class TargetPause(Message):
    """Until when nobody calls a target, if so; ``now`` is the same clock, in milliseconds since the epoch."""

    target: str
    paused_until: Milliseconds | None = None
    now: Milliseconds


class ListWorkers(Message):
    """Which workers does the ledger know?"""


class DrainWorker(Message):
    """The worker of this id takes no more calls, finishes what it runs, and ends."""

    worker_id: Id


class RegisteredWorker(Message):
    """One worker process. It lives while its lease runs (milliseconds since the epoch); ``running`` calls are in its
    hands by the ledger's word."""

    worker_id: str
    incarnation: str
    lease_until: Milliseconds
    drain: DrainState
    running: int = 0


class WorkerList(Message):
    """Workers, sorted: those that live, and those of the last day that were asked to drain."""

    workers: list[RegisteredWorker]
    now: Milliseconds
