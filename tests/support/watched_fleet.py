"""A metadata service and a worker in this process, with every handler, every settlement and every log line watched.

For tests that are no coroutines (hypothesis runs its examples in none): the loop is the fleet's own, and is driven
from outside. What a handler lets escape is kept, not given to the bus, so that a test fails by it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Consumer, Delivery, Envelope, Handler
from quintain.bus.memory import MemoryBroker, MemoryBus, MemoryConsumer
from quintain.caller import Caller, Question
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.contracts.ledger import TargetCard
from quintain.contracts.metadata import Info, SessionOpened
from quintain.contracts.token import digest
from quintain.routes import TOKEN_HEADER
from quintain.topology import INVOKE, METADATA, POISON_QUEUE, REPLY, Exchange, Queue, reply_topology
from quintain_metadata.ledger_factory import open_ledger
from quintain_metadata.service import MetadataService
from quintain_worker.handler import Served
from quintain_worker.port import Answer, Heard
from quintain_worker.worker import Worker

Returned = TypeVar("Returned")

ADMIN_TOKEN = "the admin token of a test"

#: Where a hostile publisher hears its answers.
REPLY_KEY = "stranger.of.this.test"

PATIENCE_SECONDS = 10.0

CARD = TargetCard(name="a", provider="mock", max_concurrency=64)


@dataclass
class Watch:
    """What became of the deliveries that the services took, since `forget`."""

    #: The queue, and how its handler settled the delivery.
    settled: list[tuple[str, ...]] = field(default_factory=list)
    escaped: list[str] = field(default_factory=list)
    answers: list[Envelope] = field(default_factory=list)
    running: int = 0

    def forget(self) -> None:
        self.settled.clear()
        self.escaped.clear()
        self.answers.clear()


class Watched:
    """A delivery that remembers how it was settled."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.ends: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._delivery, name)

    async def ack(self) -> None:
        self.ends.append("ack")
        await self._delivery.ack()

    async def requeue(self) -> None:
        self.ends.append("requeue")
        await self._delivery.requeue()

    async def dead_letter(self) -> None:
        self.ends.append("dead_letter")
        await self._delivery.dead_letter()


class WatchedBus(MemoryBus):
    """A connection whose handlers and answers are watched."""

    def __init__(self, memory: MemoryBroker, watch: Watch) -> None:
        super().__init__(memory)
        self.watch = watch

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        if exchange == REPLY and not key.startswith("worker."):
            self.watch.answers.append(envelope)
        await super().publish(exchange, key, envelope, timeout=timeout)

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int, **more: Any) -> Consumer:
        watch = self.watch

        async def watched(delivery: Delivery) -> None:
            watch.running += 1
            seen = Watched(delivery)
            try:
                await handler(seen)  # type: ignore[arg-type]
            except Exception:
                watch.escaped.append(traceback.format_exc())
                await delivery.ack()
            finally:
                watch.running -= 1
                watch.settled.append((queue.name, *seen.ends))

        return await super().consume(queue, watched, prefetch=prefetch, **more)


class Written(logging.Handler):
    """Everything that is logged, as it would be written."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("quintain"):
            self.lines.append(self.format(record))


class Parrot:
    """A provider that answers at once."""

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        return Answer(text="yes", token_usage=TokenUsage(input=1, output=1))

    async def close(self) -> None:
        pass


class WatchedFleet:
    """One metadata service, one worker that serves ``a``, and whoever asks them."""

    def __init__(self, runner: asyncio.Runner, written: Written) -> None:
        self._runner, self.written = runner, written
        self.memory = MemoryBroker()
        self.watch = Watch()
        self.kept: list[Delivery] = []
        self.lost: list[str] = []
        self.stranger = self.memory.connect()
        self._stack = contextlib.AsyncExitStack()

    def run(self, doing: Coroutine[Any, Any, Returned]) -> Returned:
        """Run this on the fleet's loop."""
        return self._runner.run(doing)

    async def start(self, ledger_url: str) -> None:
        """Start the services, and open the session in whose name everything is asked."""
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.lost.append(str(context)))
        self.ledger = await open_ledger(ledger_url)
        self._stack.push_async_callback(self.ledger.close)
        await self._start_services()
        self.caller = Caller(self.stranger)
        await self.caller.start()
        mine = reply_topology("replies of a stranger", REPLY_KEY)
        await self.stranger.declare(mine)
        await self.stranger.consume(mine.queues[0], self._keep_nothing, prefetch=100)
        await self.stranger.consume(POISON_QUEUE, self._keep, prefetch=100)
        self.session = SessionOpened.from_wire(await self.ask(METADATA, "open", ADMIN_TOKEN, OPEN))
        self.other = SessionOpened.from_wire(await self.ask(METADATA, "open", ADMIN_TOKEN, OPEN))

    async def _start_services(self) -> None:
        bus = WatchedBus(self.memory, self.watch)
        self._stack.callback(self.memory.close)
        for one in (self.stranger, bus):
            self._stack.push_async_callback(one.close)
        service = MetadataService(bus, self.ledger, digest(ADMIN_TOKEN))
        await service.start()
        self._stack.push_async_callback(service.stop)
        # What the clock changes is nobody's doing: the books must stand still between two looks.
        assert service._sweeper is not None
        service._sweeper.cancel()
        self.worker = await self._stack.enter_async_context(serving(self.memory, self.watch))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def ask(self, exchange: Exchange, key: str, token: str, body: bytes = b"") -> bytes:
        """Ask as an honest client does; the body of the result."""
        question = Question(
            exchange=exchange,
            key=key,
            type=key or "invoke",
            body=body,
            headers={TOKEN_HEADER: token},
            deadline_seconds=PATIENCE_SECONDS,
        )
        answer = await self.caller.ask(question)
        assert answer.type == "result", answer.body
        return answer.body

    async def info(self) -> dict[str, object]:
        """The session's books; not the time."""
        read = Info.from_wire(await self.ask(METADATA, "info", self.session.token))
        return read.model_dump(exclude={"now"})

    async def invoke(self, key: str = "a") -> bytes:
        """A good call, to its result; without a key it is routed."""
        return await self.ask(INVOKE, key, self.session.token, b'{"question": "x"}')

    async def publish(self, exchange: Exchange, key: str, envelope: Envelope) -> None:
        """Put a stranger's message on the bus, and wait until nothing of it is in anybody's hands."""
        await self.stranger.publish(exchange, key, envelope)
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until every delivery is settled and every handler has ended."""
        ends = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while busy := self._busy():
            assert asyncio.get_running_loop().time() < ends, f"never settled: {busy}"
            await asyncio.sleep(0)

    def _busy(self) -> list[str]:
        """What is in somebody's hands, or on its way there."""
        waiting = [
            f"{name}: {len(queue.ready)} ready, {[len(taker._unsettled) for taker in takers]} taken"
            for name, queue in self.memory._queues.items()
            if (takers := [taker for taker in queue.takers if isinstance(taker, MemoryConsumer)])
            and (queue.ready or any(taker._unsettled for taker in takers))
        ]
        return waiting + [f"{self.watch.running} handlers run"] * bool(self.watch.running)

    async def _keep(self, delivery: Delivery) -> None:
        self.kept.append(delivery)
        await delivery.ack()

    async def _keep_nothing(self, delivery: Delivery) -> None:
        await delivery.ack()


@contextlib.asynccontextmanager
async def serving(memory: MemoryBroker, watch: Watch) -> AsyncIterator[Worker]:
    """A watched worker that serves ``a`` on this broker, stopped at the end."""
    bus = WatchedBus(memory, watch)
    bus.user = "worker"
    worker = Worker(bus, {"a": Served(name="a", provider=Parrot(), most_tries=1)}, [CARD])
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(grace_seconds=0)
        await bus.close()


OPEN = b'{"defaultTarget": "a", "maxCalls": 9007199254740991}'


@contextlib.contextmanager
def watched_fleet(ledger_url: str = "sqlite://") -> Iterator[WatchedFleet]:
    """A fleet on a loop of its own, stopped at the end."""
    root, written = logging.getLogger(), Written()
    level = root.level
    root.addHandler(written)
    root.setLevel(logging.DEBUG)
    try:
        with asyncio.Runner() as runner:
            fleet = WatchedFleet(runner, written)
            try:
                fleet.run(fleet.start(ledger_url))
                yield fleet
            finally:
                fleet.run(fleet.stop())
    finally:
        root.removeHandler(written)
        root.setLevel(level)
