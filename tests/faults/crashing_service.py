"""``python -m faults.crashing_service serve SERVICE``: ``quintain serve``, on a bus that kills its own process at one
exact step, or by a clock that is off. Nothing has a last word.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn
from unittest.mock import patch

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Bus, Consumer, Delivery, Envelope, Handler
from quintain.bus.connect import connect_bus
from quintain.topology import Exchange, Queue
from quintain_cli.__main__ import main
from support.process_fleet import Process, ProcessFleet

#: Where a start program finds its step, as JSON; the fleet's own variables are the product's alone.
CRASH_VARIABLE = "TEST_DIES_AT"


@dataclass(frozen=True, kw_only=True)
class CrashPoint:
    """The ``nth`` time that the process does this, it dies.

    ``name`` begins the exchange's name of a publish, the queue's name of a delivery taken or acknowledged; ``type``
    and ``correlation_id`` narrow it. ``blocked_exchange`` names an exchange to which nothing is let through
    meanwhile: of two things that travel together, the one that is held had not gone.
    """

    action: Literal["publish", "take", "ack"]
    name_prefix: str
    when: Literal["before", "after"] = "before"
    type: str | None = None
    correlation_id: str | None = None
    nth: int = 1
    blocked_exchange: str | None = None


def kill_own_process() -> NoReturn:
    """As `kill -9` does it."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody outlives SIGKILL")


class CrashingBus:
    """Another bus, until the step comes."""

    def __init__(self, bus: Bus, crash_point: CrashPoint) -> None:
        self._bus, self._crash_point = bus, crash_point
        self._match_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def is_reached(self, action: str, name: str, type_: str, correlation_id: str | None) -> bool:
        """Whether this is the one."""
        crash_point = self._crash_point
        matches = (
            action == crash_point.action
            and name.startswith(crash_point.name_prefix)
            and crash_point.type in {None, type_}
            and crash_point.correlation_id in {None, correlation_id}
        )
        self._match_count += matches
        return matches and self._match_count == crash_point.nth

    async def run_or_crash(self, action: str, name: str, message: Envelope | Delivery, operation: Any) -> None:
        """Do it, and die before or after where it is the one."""
        is_reached = self.is_reached(action, name, message.type, message.correlation_id)
        if is_reached and self._crash_point.when == "before":
            kill_own_process()
        await operation()
        if is_reached:
            kill_own_process()

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        if exchange.name == self._crash_point.blocked_exchange:
            await asyncio.Event().wait()
        await self.run_or_crash(
            "publish",
            exchange.name,
            envelope,
            lambda: self._bus.publish(exchange, key, envelope, timeout_seconds=timeout_seconds),
        )

    async def consume(self, queue: Queue, handler: Handler, **options: Any) -> Consumer:
        async def on_delivery(delivery: Delivery) -> None:
            await self.run_or_crash(
                "take", queue.name, delivery, lambda: handler(_CrashingDelivery(delivery, queue.name, self))
            )

        return await self._bus.consume(queue, on_delivery, **options)


class _CrashingDelivery:
    """A delivery whose acknowledgement may be the step."""

    def __init__(self, delivery: Delivery, queue: str, bus: CrashingBus) -> None:
        self._delivery, self._queue, self._bus = delivery, queue, bus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    async def ack(self) -> None:
        await self._bus.run_or_crash("ack", self._queue, self._delivery, self._delivery.ack)


def start_with_faults(
    fleet: ProcessFleet, service: str, *, crash_point: CrashPoint | None = None, extra: Mapping[str, str] | None = None
) -> Process:
    """A service that dies at a step, or that has variables of its own. It is not waited for: under load it may die as
    soon as it answers."""
    crash_env = {} if crash_point is None else {CRASH_VARIABLE: json.dumps(asdict(crash_point))}
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**fleet.env, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **crash_env, **(extra or {})}
    process = Process(("serve", service), env, fleet.folder, program="faults.crashing_service")
    fleet.processes.append(process)
    return process


#: By how many seconds this process's clock is ahead.
CLOCK_AHEAD_VARIABLE = "TEST_CLOCK_AHEAD"


if __name__ == "__main__":
    ahead, true_time = float(os.environ.get(CLOCK_AHEAD_VARIABLE, "0")), time.time
    time.time = lambda: true_time() + ahead
    step = os.environ.get(CRASH_VARIABLE)

    async def connect_crashing(*arguments: Any, **options: Any) -> Any:
        bus = await connect_bus(*arguments, **options)
        return bus if step is None else CrashingBus(bus, CrashPoint(**json.loads(step)))

    with patch("quintain_cli.service_process.connect_bus", connect_crashing):
        main()
