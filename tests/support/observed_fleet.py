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

from pamqp.commands import Basic

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS, Consumer, Delivery, Envelope, Handler
from quintain.bus.memory import MemoryBroker, MemoryBus, MemoryConsumer
from quintain.contracts.credentials import digest
from quintain.contracts.headers import TOKEN_HEADER
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.contracts.ledger import TargetCard
from quintain.contracts.session import Info, SessionOpened
from quintain.rpc.requests import RpcClient, RpcRequest
from quintain.topology import INVOKE, METADATA, POISON_QUEUE, REPLY, Exchange, Queue, reply_topology
from quintain_metadata.service import MetadataService
from quintain_metadata.store.opening import open_ledger
from quintain_worker.providers.provider import OnText, ProviderAnswer
from quintain_worker.target import WorkerTarget
from quintain_worker.worker import Worker

Returned = TypeVar("Returned")

ADMIN_TOKEN = "the admin token of a test"

#: Where a hostile publisher hears its answers.
REPLY_KEY = "stranger.of.this.test"

TIMEOUT_SECONDS = 10.0

CARD = TargetCard(name="a", provider="mock", max_concurrency=64)


@dataclass
class DeliveryLog:
    """What became of the deliveries that the services took, since `clear`."""

    #: The queue, and how its handler settled the delivery.
    settled: list[tuple[str, ...]] = field(default_factory=list)
    unhandled_errors: list[str] = field(default_factory=list)
    answers: list[Envelope] = field(default_factory=list)
    running: int = 0

    def clear(self) -> None:
        self.settled.clear()
        self.unhandled_errors.clear()
        self.answers.clear()


class ObservedDelivery:
    """A delivery that remembers how it was settled."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.settlements: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._delivery, name)

    async def ack(self) -> None:
        self.settlements.append("ack")
        await self._delivery.ack()

    async def requeue(self) -> None:
        self.settlements.append("requeue")
        await self._delivery.requeue()

    async def dead_letter(self) -> None:
        self.settlements.append("dead_letter")
        await self._delivery.dead_letter()


class ObservedBus(MemoryBus):
    """A connection whose handlers and answers are watched."""

    def __init__(self, memory: MemoryBroker, delivery_log: DeliveryLog) -> None:
        super().__init__(memory)
        self.delivery_log = delivery_log

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        # As a broker takes it: whatever a stranger wrote, nothing may be sent that AMQP cannot carry.
        Basic.Publish(exchange=exchange.name, routing_key=key).marshal()
        Basic.Properties(
            correlation_id=envelope.correlation_id, reply_to=envelope.reply_to, headers=dict(envelope.headers)
        ).marshal()
        if exchange == REPLY and not key.startswith("worker."):
            self.delivery_log.answers.append(envelope)
        await super().publish(exchange, key, envelope, timeout_seconds=timeout_seconds)

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int, **options: Any) -> Consumer:
        delivery_log = self.delivery_log

        async def observed_handler(delivery: Delivery) -> None:
            delivery_log.running += 1
            observed = ObservedDelivery(delivery)
            try:
                await handler(observed)  # type: ignore[arg-type]
            except Exception:
                delivery_log.unhandled_errors.append(traceback.format_exc())
                await delivery.ack()
            finally:
                delivery_log.running -= 1
                delivery_log.settled.append((queue.name, *observed.settlements))

        return await super().consume(queue, observed_handler, prefetch=prefetch, **options)


class LogCapture(logging.Handler):
    """Everything that is logged, as it would be written."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("quintain"):
            self.lines.append(self.format(record))


class StubProvider:
    """A provider that answers at once."""

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        return ProviderAnswer(text="yes", token_usage=TokenUsage(input=1, output=1))

    async def close(self) -> None:
        pass


class ObservedFleet:
    """One metadata service, one worker that serves ``a``, and whoever asks them."""

    def __init__(self, runner: asyncio.Runner, log_capture: LogCapture) -> None:
        self._runner, self.log_capture = runner, log_capture
        self.memory = MemoryBroker()
        self.delivery_log = DeliveryLog()
        self.poison_messages: list[Delivery] = []
        self.loop_errors: list[str] = []
        self.publisher_bus = self.memory.connect()
        self._stack = contextlib.AsyncExitStack()

    def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run this on the fleet's loop."""
        return self._runner.run(coroutine)

    async def start(self) -> None:
        """Start the services, and open the session in whose name everything is asked."""
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.loop_errors.append(str(context)))
        self.ledger = await open_ledger("sqlite://")
        self._stack.push_async_callback(self.ledger.close)
        await self._start_services()
        self.rpc_client = RpcClient(self.publisher_bus)
        await self.rpc_client.start()
        topology = reply_topology("replies of a stranger", REPLY_KEY)
        await self.publisher_bus.declare(topology)
        await self.publisher_bus.consume(topology.queues[0], self._discard, prefetch=100)
        await self.publisher_bus.consume(POISON_QUEUE, self._record_poison, prefetch=100)
        self.session = SessionOpened.from_wire(await self.call(METADATA, "open", ADMIN_TOKEN, OPEN))
        self.other_session = SessionOpened.from_wire(await self.call(METADATA, "open", ADMIN_TOKEN, OPEN))

    async def _start_services(self) -> None:
        bus = ObservedBus(self.memory, self.delivery_log)
        self._stack.callback(self.memory.close)
        for one in (self.publisher_bus, bus):
            self._stack.push_async_callback(one.close)
        service = MetadataService(bus, self.ledger, digest(ADMIN_TOKEN), start_window_seconds=0)
        await service.start()
        self._stack.push_async_callback(service.stop)
        # What the clock changes is nobody's doing: the books must stand still between two looks.
        service._sweep_task.cancel()
        self.worker = await self._stack.enter_async_context(observed_worker(self.memory, self.delivery_log))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def call(self, exchange: Exchange, key: str, token: str, body: bytes = b"") -> bytes:
        """Ask as an honest client does; the body of the result."""
        request = RpcRequest(
            exchange=exchange,
            key=key,
            type=key or "invoke",
            body=body,
            headers={TOKEN_HEADER: token},
            deadline_seconds=TIMEOUT_SECONDS,
        )
        answer = await self.rpc_client.call(request)
        assert answer.type == "result", answer.body
        return answer.body

    async def info(self) -> dict[str, object]:
        """The session's books; not the time."""
        read = Info.from_wire(await self.call(METADATA, "info", self.session.token))
        return read.model_dump(exclude={"now"})

    async def invoke(self, key: str = "a") -> bytes:
        """A good call, to its result; without a key it is routed."""
        return await self.call(INVOKE, key, self.session.token, b'{"question": "x"}')

    async def publish(self, exchange: Exchange, key: str, envelope: Envelope) -> None:
        """Put a stranger's message on the bus, and wait until nothing of it is in anybody's hands."""
        await self.publisher_bus.publish(exchange, key, envelope)
        await self.wait_until_idle()

    async def wait_until_idle(self) -> None:
        """Wait until every delivery is settled and every handler has ended."""
        ends = asyncio.get_running_loop().time() + TIMEOUT_SECONDS
        while busy := self._unsettled():
            assert asyncio.get_running_loop().time() < ends, f"never settled: {busy}"
            await asyncio.sleep(0)

    def _unsettled(self) -> list[str]:
        """What is in somebody's hands, or on its way there."""
        waiting = [
            f"{name}: {len(queue.ready)} ready, {[len(consumer._unsettled) for consumer in consumers]} taken"
            for name, queue in self.memory._queues.items()
            if (consumers := [taker for taker in queue.consumers if isinstance(taker, MemoryConsumer)])
            and (queue.ready or any(taker._unsettled for taker in consumers))
        ]
        return waiting + [f"{self.delivery_log.running} handlers run"] * bool(self.delivery_log.running)

    async def _record_poison(self, delivery: Delivery) -> None:
        self.poison_messages.append(delivery)
        await delivery.ack()

    async def _discard(self, delivery: Delivery) -> None:
        await delivery.ack()


@contextlib.asynccontextmanager
async def observed_worker(memory: MemoryBroker, delivery_log: DeliveryLog) -> AsyncIterator[Worker]:
    """A watched worker that serves ``a`` on this broker, stopped at the end."""
    bus = ObservedBus(memory, delivery_log)
    bus.user = "worker"
    worker = Worker(bus, {"a": WorkerTarget(name="a", provider=StubProvider(), max_tries=1)}, [CARD])
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(grace_seconds=0)
        await bus.close()


OPEN = b'{"defaultTarget": "a", "maxCalls": 9007199254740991}'


@contextlib.contextmanager
def observed_fleet() -> Iterator[ObservedFleet]:
    """A fleet on a loop of its own, stopped at the end."""
    root, log_capture = logging.getLogger(), LogCapture()
    level = root.level
    root.addHandler(log_capture)
    root.setLevel(logging.DEBUG)
    try:
        with asyncio.Runner() as runner:
            fleet = ObservedFleet(runner, log_capture)
            try:
                fleet.run(fleet.start())
                yield fleet
            finally:
                fleet.run(fleet.stop())
    finally:
        root.removeHandler(log_capture)
        root.setLevel(level)
