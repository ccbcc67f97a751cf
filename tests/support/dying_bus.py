"""A bus that kills its own process at one exact step: no product code knows of it, and nothing has a last word."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Bus, Consumer, Delivery, Envelope, Handler
from quintain.topology import Exchange, Queue

#: Where a start program finds its step, as JSON; the fleet's own variables are the product's alone.
DIES_VARIABLE = "TEST_DIES_AT"


@dataclass(frozen=True, kw_only=True)
class Step:
    """The ``nth`` time that the process does this, it dies.

    ``where`` begins the exchange's name of a publish, the queue's name of a delivery taken or acknowledged; ``type``
    and ``correlation_id`` narrow it. ``holds`` names an exchange to which nothing is let through meanwhile: of two
    things that travel together, the one that is held had not gone.
    """

    does: Literal["publish", "take", "ack"]
    where: str
    moment: Literal["before", "after"] = "before"
    type: str | None = None
    correlation_id: str | None = None
    nth: int = 1
    holds: str | None = None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def die() -> NoReturn:
    """As `kill -9` does it."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody outlives SIGKILL")


class DyingBus:
    """Another bus, until the step comes."""

    def __init__(self, bus: Bus, step: Step) -> None:
        self._bus, self._step = bus, step
        self._seen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def reached(self, does: str, where: str, type_: str, correlation_id: str | None) -> bool:
        """Whether this is the one."""
        step = self._step
        fits = (
            does == step.does
            and where.startswith(step.where)
            and step.type in {None, type_}
            and step.correlation_id in {None, correlation_id}
        )
        self._seen += fits
        return fits and self._seen == step.nth

    async def at(self, does: str, where: str, message: Envelope | Delivery, doing: Any) -> None:
        """Do it, and die before or after where it is the one."""
        reached = self.reached(does, where, message.type, message.correlation_id)
        if reached and self._step.moment == "before":
            die()
        await doing()
        if reached:
            die()

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        if exchange.name == self._step.holds:
            await asyncio.Event().wait()
        await self.at(
            "publish", exchange.name, envelope, lambda: self._bus.publish(exchange, key, envelope, timeout=timeout)
        )

    async def consume(self, queue: Queue, handler: Handler, **how: Any) -> Consumer:
        async def take(delivery: Delivery) -> None:
            await self.at("take", queue.name, delivery, lambda: handler(_Watched(delivery, queue.name, self)))

        return await self._bus.consume(queue, take, **how)


class _Watched:
    """A delivery whose acknowledgement may be the step."""

    def __init__(self, delivery: Delivery, queue: str, bus: DyingBus) -> None:
        self._delivery, self._queue, self._watching = delivery, queue, bus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    async def ack(self) -> None:
        await self._watching.at("ack", self._queue, self._delivery, self._delivery.ack)
