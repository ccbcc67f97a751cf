"""A metadata service that says what a test tells it to: it hears a worker's own operations over a memory broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quintain.bus.base import Delivery, Envelope, HeaderValue
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import DEADLINE_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.ledger import (
    Admission,
    Admit,
    AdmitBatch,
    AdmitReply,
    CallKey,
    Cancellation,
    Heartbeat,
    LeaseRenewed,
    Register,
    Settle,
    SettleBatch,
)
from quintain.errors import Fault
from quintain.rpc.server import send_reply
from quintain.topology import (
    ADMIT_QUEUE,
    HEARTBEAT_QUEUE,
    INVOKE,
    METADATA_TOPOLOGY,
    REPLY,
    SETTLE_QUEUE,
    reply_topology,
    target_queue,
    target_topology,
)

Item = TypeVar("Item")

#: What the stand-in makes of an admit: an admission, "held", or None: it says nothing.
AdmitPolicy = Callable[[Admit], Admission | str | None]


def grant(request: Admit, *, seconds: float = 60, **overrides: object) -> Admission:
    """The first attempt of the first call of ten, with so many seconds to go."""
    deadline = int(time.time() * 1000 + seconds * 1000)
    fields = {"attempt": 1, "deadline": deadline, "call_count": 1, "max_calls": 10, **overrides}
    return Admission.model_validate({"attempt_id": request.attempt_id, **fields})


@dataclass
class FakeLedgerService:
    """The other end of the ledger's exchange. Everything it hears is kept, in order; it does not answer the
    operations that it is deaf to."""

    memory: MemoryBroker
    bus: MemoryBus
    admit_policy: AdmitPolicy = grant
    admits: asyncio.Queue[Admit] = field(default_factory=asyncio.Queue)
    settles: asyncio.Queue[Settle] = field(default_factory=asyncio.Queue)
    settle_batches: list[int] = field(default_factory=list)
    registers: asyncio.Queue[Register] = field(default_factory=asyncio.Queue)
    heartbeats: asyncio.Queue[Heartbeat] = field(default_factory=asyncio.Queue)
    known: bool = True
    #: What it answers to registrations.
    refusal: Fault | None = None
    #: Whether an administrator has asked every worker to drain.
    drain: bool = False
    #: How far its clock is ahead of this machine's, in milliseconds.
    clock_ahead_ms: int = 0
    #: What every renewal says beside: cancelled calls, and the free slots of other workers.
    cancelled: list[CallKey] = field(default_factory=list)
    other_slots: dict[str, int] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)
    #: How many tries of each call count.
    tries: Counter[str] = field(default_factory=Counter)
    _last_admit: Delivery | None = None
    _reply_keys: list[str] = field(default_factory=list)

    async def start(self) -> None:
        """Declare the protocol's queues and hear what comes."""
        await self.bus.declare(METADATA_TOPOLOGY)
        for queue in (ADMIT_QUEUE, HEARTBEAT_QUEUE):
            await self.bus.consume(queue, self._on_ledger, prefetch=100)
        await self.bus.consume(SETTLE_QUEUE, self._on_settle, prefetch=100)

    async def answer_last_admit(self, *items: Admission) -> None:
        """Answer again where the last admit came from."""
        assert self._last_admit is not None
        await send_reply(self.bus, self._last_admit, AdmitReply(items=list(items), now=int(time.time() * 1000)))

    def now(self) -> int:
        """Its clock."""
        return int(time.time() * 1000) + self.clock_ahead_ms

    async def send_cancellation(self, *calls: CallKey) -> None:
        """Tell every worker that has registered that these calls were taken back."""
        envelope = Envelope(
            body=Cancellation(calls=list(calls)).to_wire(), type="cancel", correlation_id="cancel", persistent=False
        )
        for key in self._reply_keys:
            await self.bus.publish(REPLY, key, envelope)

    async def _on_ledger(self, delivery: Delivery) -> None:
        await delivery.ack()
        if delivery.routing_key == "admit":
            await self._on_admit(delivery)
            return
        if delivery.routing_key == "register":
            card = Register.from_wire(delivery.body)
            for target in card.targets:
                await self.bus.declare(target_topology(target.name))
            self.registers.put_nowait(card)
            self._reply_keys.append(delivery.reply_to or "")
            if self.refusal is not None:
                await send_reply(self.bus, delivery, self.refusal)
                return
        else:
            heartbeat = Heartbeat.from_wire(delivery.body)
            self.heartbeats.put_nowait(heartbeat)
        if delivery.routing_key not in self.unanswered:
            renewed = LeaseRenewed(
                now=self.now(),
                known=self.known,
                taken_back=self.cancelled or None,
                drain=self.drain or None,
                other_slots=self.other_slots or None,
            )
            await send_reply(self.bus, delivery, renewed)

    async def _on_admit(self, delivery: Delivery) -> None:
        self._last_admit = delivery
        items: list[Admission] = []
        deferred_ids: list[str] = []
        for request in AdmitBatch.from_wire(delivery.body).items:
            decision = self.admit_policy(request)
            if isinstance(decision, Admission):
                items.append(decision.with_fields(tries=self.tries[request.request_id]))
            elif decision == "held":
                deferred_ids.append(request.attempt_id)
            self.admits.put_nowait(request)
        if items or deferred_ids:
            now = int(time.time() * 1000)
            await send_reply(self.bus, delivery, AdmitReply(items=items, held=deferred_ids or None, now=now))

    async def _on_settle(self, delivery: Delivery) -> None:
        await delivery.ack()
        batch = SettleBatch.from_wire(delivery.body)
        self.settle_batches.append(len(batch.items))
        for item in batch.items:
            self.tries[item.request_id] += bool(item.is_counted)
            self.settles.put_nowait(item)


@dataclass
class FakeEvaluator:
    """Whoever asks: publishes requests and keeps their replies, by correlation id."""

    bus: MemoryBus
    target: str
    token: str = field(default_factory=lambda: SessionToken.mint().text)
    replies: asyncio.Queue[Delivery] = field(default_factory=asyncio.Queue)

    @property
    def reply_key(self) -> str:
        return f"evaluator.of.{self.target}"

    async def start(self) -> None:
        """Have a reply queue, and the target's."""
        topology = reply_topology(f"replies.{self.reply_key}", self.reply_key)
        await self.bus.declare(target_topology(self.target) + topology)
        await self.bus.consume(topology.queues[0], self._on_reply, prefetch=100)

    async def send_request(self, correlation_id: str = "c1", **fields: Any) -> None:
        """Publish one request to the target."""
        await self.bus.publish(INVOKE, self.target, self.request(correlation_id, **fields))

    def request(
        self,
        correlation_id: str = "c1",
        *,
        body: bytes = b'{"question": "x"}',
        seconds: float | None = 60,
        headers: Mapping[str, HeaderValue] | None = None,
        **properties_: object,
    ) -> Envelope:
        """Return one request to the target."""
        deadline = {} if seconds is None else {DEADLINE_HEADER: int(time.time() * 1000 + seconds * 1000)}
        all_headers = {
            TOKEN_HEADER: self.token,
            REQUEST_ID_HEADER: f"r-{correlation_id}",
            **deadline,
            **(headers or {}),
        }
        amqp_properties = {
            "correlation_id": correlation_id,
            "reply_to": self.reply_key,
            "type": "invoke",
            **properties_,
        }
        return Envelope(body=body, headers=all_headers, **amqp_properties)  # type: ignore[arg-type]

    async def _on_reply(self, delivery: Delivery) -> None:
        await delivery.ack()
        self.replies.put_nowait(delivery)


@contextlib.asynccontextmanager
async def fake_ledger_service(admit_policy: AdmitPolicy = grant) -> AsyncIterator[FakeLedgerService]:
    """A stand-in that hears, on a broker of its own, closed at the end."""
    memory = MemoryBroker()
    bus = memory.connect()
    ledger = FakeLedgerService(memory, bus, admit_policy)
    await ledger.start()
    try:
        yield ledger
    finally:
        await bus.close()
        memory.close()


async def send_again(ledger: FakeLedgerService, evaluator: FakeEvaluator, *correlation_ids: str) -> None:
    """Publish requests, and have them delivered as those of a worker that was lost."""
    queue = ledger.memory.queue(target_queue(evaluator.target).name)
    consumers, queue.consumers = queue.consumers, deque()
    for correlation_id in correlation_ids:
        await evaluator.send_request(correlation_id)
    sent, queue.ready, queue.consumers = queue.ready, deque(), consumers
    for message in reversed(sent):
        queue.requeue(message)


async def next_item(queue: asyncio.Queue[Item]) -> Item:
    """The next thing of a queue, or a failure in five seconds."""
    async with asyncio.timeout(5):
        return await queue.get()
