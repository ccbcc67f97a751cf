"""Messages and consumers at the far end of a pipe: what arrives, and who takes it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quintain.bus.base import Subscription
from quintain.bus.pipe_frames import Frame, How, Kind
from quintain.bus.tasks import HandlerTasks
from quintain.errors import BrokerUnavailable


class Pipe(Protocol):
    """The pipe, as far as a consumer goes."""

    @property
    def connected(self) -> bool:
        """Whether there is somebody at the other end."""

    def send(self, frame: Frame) -> None:
        """Send what wants no answer; nobody hears it where the other end has gone."""

    async def ask(self, kind: Kind, fields: Mapping[str, object]) -> None:
        """Send what wants an answer. Raises `BusError`."""


@dataclass(slots=True, eq=False)
class PipeDelivery:
    """A message that arrived over a pipe."""

    body: bytes
    type: str
    correlation_id: str | None
    reply_to: str | None
    headers: Mapping[str, object]
    expiration_ms: int | None
    exchange: str
    routing_key: str
    redelivered: bool
    _settle: Callable[[How], None]

    async def ack(self) -> None:
        self._settle(How.ACK)

    async def requeue(self) -> None:
        self._settle(How.REQUEUE)

    async def dead_letter(self) -> None:
        self._settle(How.DEAD_LETTER)


@dataclass(slots=True, eq=False)
class PipeConsumer:
    """A queue being consumed over a pipe, by its number there."""

    _pipe: Pipe
    _number: int
    _subscription: Subscription
    _released: Callable[[int], None]
    _tasks: HandlerTasks = field(default_factory=HandlerTasks)
    _cancelled: bool = False

    @property
    def live(self) -> bool:
        return self._pipe.connected and not self._cancelled

    async def attach(self) -> None:
        """Begin. Raises `BusError`."""
        queue = dataclasses.asdict(self._subscription.queue)
        fields = {"consumer": self._number, "queue": queue, "prefetch": self._subscription.prefetch}
        await self._pipe.ask(Kind.CONSUME, fields)

    def take(self, tag: int, message: Mapping[str, Any], body: bytes) -> None:
        """Hand a message to the handler."""

        def settle(how: How) -> None:
            self._pipe.send(Frame(Kind.SETTLE, {"consumer": self._number, "tag": tag, "how": how}))

        self._tasks.start(self._subscription.handler, PipeDelivery(**message, body=body, _settle=settle))

    def lose(self) -> None:
        """Say that the queue was lost."""
        if self._subscription.lost is not None and not self._cancelled:
            self._subscription.lost()

    async def cancel(self) -> None:
        self._cancelled = True
        await self._tell(Kind.CANCEL)

    async def drain(self, timeout: float) -> bool:
        await self.cancel()
        done = await self._tasks.finish(timeout)
        self._released(self._number)
        await self._tell(Kind.RELEASE)
        return done

    async def _tell(self, kind: Kind) -> None:
        # Where the other end has gone it has let go of everything.
        with contextlib.suppress(BrokerUnavailable):
            await self._pipe.ask(kind, {"consumer": self._number})
