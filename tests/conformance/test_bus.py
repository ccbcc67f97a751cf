"""The bus's promise, kept by every transport: each test runs over memory and over RabbitMQ."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from conformance.transports import Transport
from quintain.bus.base import Bus, Delivery, Envelope, QueueCount, earlier_deliveries
from quintain.errors import BrokerUnavailable, QueueFull, Unroutable
from quintain.topology import DELIVERY_LIMIT, Binding, Exchange, Queue, Topology
from support.waiting import wait_until

pytestmark = pytest.mark.every_broker


@dataclasses.dataclass
class BoundQueue:
    """A private corner of the broker: an exchange, a queue bound with its name, and a dead-letter queue."""

    transport: Transport
    bus: Bus
    exchange: Exchange
    queue: Queue
    dead: Queue
    topology: Topology

    async def publish(self, body: bytes, *, expiration_ms: int | None = None, key: str | None = None) -> None:
        envelope = Envelope(
            body=body,
            type="test",
            correlation_id="c",
            reply_to="r",
            headers={"n": 1, "s": "x"},
            expiration_ms=expiration_ms,
        )
        await self.bus.publish(self.exchange, self.queue.name if key is None else key, envelope, timeout_seconds=10)


def bound_queue_factory(**arguments: object) -> Callable[[Transport], Awaitable[BoundQueue]]:
    async def make(transport: Transport) -> BoundQueue:
        name = f"t.{secrets.token_hex(6)}"
        exchange, graves = Exchange(name, "topic"), Exchange(f"{name}.graves", "fanout")
        queue = dataclasses.replace(
            Queue(name, "quorum", delivery_limit=3, dead_letter_exchange=graves.name), **arguments
        )
        dead = Queue(f"{name}.dead", "quorum")
        topology = Topology((exchange, graves), (queue, dead), (Binding(exchange, queue, name), Binding(graves, dead)))
        bus = await transport.connect()
        await bus.declare(topology)
        return BoundQueue(transport, bus, exchange, queue, dead, topology)

    return make


@pytest.fixture
async def bound_queue(transport: Transport) -> AsyncIterator[BoundQueue]:
    yield await bound_queue_factory()(transport)


class Inbox:
    """A handler that keeps what it gets, acknowledged unless told otherwise."""

    def __init__(self, settle: str = "ack") -> None:
        self.deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._settle = settle

    async def __call__(self, delivery: Delivery) -> None:
        self.deliveries.put_nowait(delivery)
        if self._settle != "nothing":
            await getattr(delivery, self._settle)()

    async def next(self) -> Delivery:
        async with asyncio.timeout(15):
            return await self.deliveries.get()


async def test_a_message_arrives_whole(bound_queue: BoundQueue) -> None:
    inbox = Inbox()
    await bound_queue.bus.consume(bound_queue.queue, inbox, prefetch=10)
    await bound_queue.publish("grüße".encode())
    got = await inbox.next()
    assert (got.body, got.type, got.correlation_id, got.reply_to) == ("grüße".encode(), "test", "c", "r")
    assert dict(got.headers) == {"n": 1, "s": "x"}
    assert (got.exchange, got.routing_key, got.redelivered) == (
        bound_queue.exchange.name,
        bound_queue.queue.name,
        False,
    )


async def test_a_message_names_its_user_where_that_is_asked_also_as_a_dead_letter(bound_queue: BoundQueue) -> None:
    bus, queue = bound_queue.bus, bound_queue.queue
    seen: list[tuple[bytes, str | None]] = []

    async def reject(delivery: Delivery) -> None:
        seen.append((delivery.body, delivery.user_id))
        await delivery.dead_letter()

    async def note(delivery: Delivery) -> None:
        seen.append((b"dead " + delivery.body, delivery.user_id))
        await delivery.ack()

    await bus.consume(queue, reject, prefetch=1)
    await bus.consume(bound_queue.dead, note, prefetch=1)
    for body, names_user in ((b"named", True), (b"unnamed", False)):
        envelope = Envelope(body=body, type="test", names_user=names_user)
        await bus.publish(bound_queue.exchange, queue.name, envelope, timeout_seconds=10)
    await wait_until(lambda: len(seen) == 4)
    assert dict(seen) == {b"named": bus.user, b"dead named": bus.user, b"unnamed": None, b"dead unnamed": None}


async def test_an_exchange_that_is_not_there_takes_nothing_and_is_declared_for_the_first_queue(
    transport: Transport,
) -> None:
    name = f"t.{secrets.token_hex(6)}"
    exchange, queue, inbox = Exchange(name, "direct"), Queue(name, "classic"), Inbox()
    bus, message = await transport.connect(), Envelope(body=b"x", type="test")
    with pytest.raises(Unroutable):
        await bus.publish(exchange, "key", message)
    assert [type(each) for each in await bus.publish_all(exchange, "key", [message] * 2)] == [Unroutable] * 2
    await bus.declare(Topology((), (queue,), (Binding(exchange, queue, "key"),)))
    await bus.consume(queue, inbox, prefetch=1)
    await bus.publish(exchange, "key", message)
    assert (await inbox.next()).body == b"x"


async def test_an_alternate_exchange_takes_what_is_not_bound(transport: Transport) -> None:
    ground = await bound_queue_factory()(transport)
    stray = Queue(f"{ground.queue.name}.stray", "quorum")
    alternate = Exchange(f"{ground.queue.name}.alternate", "fanout")
    front = Exchange(f"{ground.queue.name}.front", "topic", alternate=alternate.name)
    await ground.bus.declare(Topology((alternate, front), (stray,), (Binding(alternate, stray),)))
    inbox = Inbox()
    await ground.bus.consume(stray, inbox, prefetch=1)
    await ground.bus.publish(front, "some.target", Envelope(body=b"lost", type="test"))
    assert (await inbox.next()).routing_key == "some.target"


async def test_a_full_queue_refuses_the_publish(transport: Transport) -> None:
    ground = await bound_queue_factory(max_length=2)(transport)
    with pytest.raises(QueueFull):
        # A quorum queue may take a few over its limit before it refuses.
        for _ in range(20):
            await ground.publish(b"x")
            await asyncio.sleep(0.05)


async def test_no_more_than_the_prefetch_run_at_once(bound_queue: BoundQueue) -> None:
    inbox = Inbox("nothing")
    await bound_queue.bus.consume(bound_queue.queue, inbox, prefetch=2)
    for number in range(5):
        await bound_queue.publish(b"%d" % number)
    first, second = await inbox.next(), await inbox.next()
    await asyncio.sleep(0.3)
    assert inbox.deliveries.empty()
    await first.ack()
    assert (await inbox.next()).body == b"2"
    await second.ack()
    assert (await inbox.next()).body == b"3"


async def test_what_is_given_back_is_delivered_again(bound_queue: BoundQueue) -> None:
    inbox = Inbox("nothing")
    await bound_queue.bus.consume(bound_queue.queue, inbox, prefetch=1)
    await bound_queue.publish(b"x")
    await (await inbox.next()).requeue()
    again = await inbox.next()
    assert again.redelivered
    await again.ack()


@pytest.mark.parametrize("limit", [3, None])
async def test_a_message_that_is_given_back_as_often_as_its_queue_says_is_a_dead_letter(
    transport: Transport, limit: int | None
) -> None:
    ground = await bound_queue_factory(delivery_limit=limit)(transport)
    inbox, graveyard = Inbox("requeue"), Inbox()
    await ground.bus.consume(ground.dead, graveyard, prefetch=1)
    await ground.bus.consume(ground.queue, inbox, prefetch=1)
    await ground.publish(b"poison")
    dead = await graveyard.next()
    assert (dead.body, dead.routing_key, dead.correlation_id, dead.reply_to) == (b"poison", ground.queue.name, "c", "r")
    assert (dead.headers["s"], dead.headers["x-first-death-queue"]) == ("x", ground.queue.name)
    brokers = await transport.default_delivery_limit()
    # By its consumer: since RabbitMQ 4.3 the queue itself does not count what is given back.
    assert limit is None or dead.headers["x-first-death-reason"] == "rejected"
    assert inbox.deliveries.qsize() == (limit or (DELIVERY_LIMIT if brokers is None else brokers + 1))


async def test_a_queue_may_say_where_its_dead_letters_go(transport: Transport) -> None:
    name = f"t.{secrets.token_hex(6)}"
    exchange = Exchange(name, "direct")
    queue = Queue(
        name, "classic", message_ttl_ms=50, expires_ms=60_000, dead_letter_exchange=name, dead_letter_key="other"
    )
    other = Queue(f"{name}.other", "quorum")
    bus = await transport.connect()
    await bus.declare(
        Topology((exchange,), (queue, other), (Binding(exchange, queue, "own"), Binding(exchange, other, "other")))
    )
    inbox = Inbox()
    await bus.consume(other, inbox, prefetch=1)
    await bus.publish(exchange, "own", Envelope(body=b"late", type="test", expiration_ms=5_000))
    late = await inbox.next()
    assert (late.body, late.routing_key, late.expiration_ms) == (b"late", "other", None)


async def test_a_message_expires_at_the_head(bound_queue: BoundQueue) -> None:
    graveyard = Inbox()
    await bound_queue.bus.consume(bound_queue.dead, graveyard, prefetch=10)
    await bound_queue.publish(b"short", expiration_ms=50)
    dead = await graveyard.next()
    assert (dead.body, dead.headers["x-first-death-reason"]) == (b"short", "expired")


async def test_behind_a_head_that_waits_nothing_expires(bound_queue: BoundQueue) -> None:
    graveyard = Inbox()
    await bound_queue.bus.consume(bound_queue.dead, graveyard, prefetch=10)
    await bound_queue.publish(b"head")
    await bound_queue.publish(b"behind", expiration_ms=50)
    await asyncio.sleep(0.5)
    assert graveyard.deliveries.empty()
    inbox = Inbox()
    await bound_queue.bus.consume(bound_queue.queue, inbox, prefetch=1)
    assert (await inbox.next()).body == b"head"
    assert (await graveyard.next()).body == b"behind"


async def test_a_handler_outlives_the_connection_its_message_came_by(bound_queue: BoundQueue) -> None:
    started, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(delivery: Delivery) -> None:
        if delivery.redelivered:
            await delivery.ack()
            return
        started.set()
        await go_on.wait()
        await delivery.ack()
        ended.set()

    await bound_queue.bus.consume(bound_queue.queue, slow, prefetch=1)
    await bound_queue.publish(b"x")
    async with asyncio.timeout(20):
        await started.wait()
        await bound_queue.transport.drop_connection(bound_queue.bus)
        await asyncio.sleep(0.2)
        go_on.set()
        await ended.wait()


async def test_what_was_not_settled_when_the_connection_went_comes_again(bound_queue: BoundQueue) -> None:
    inbox = Inbox("nothing")
    await bound_queue.bus.consume(bound_queue.queue, inbox, prefetch=1)
    await bound_queue.publish(b"x")
    first = await inbox.next()
    await bound_queue.transport.drop_connection(bound_queue.bus)
    again = await inbox.next()
    assert (again.body, again.redelivered, earlier_deliveries(again)) == (b"x", True, 1)
    await first.ack()  # of a lost connection: it does nothing, and above all it does not settle the new delivery
    await bound_queue.transport.drop_connection(bound_queue.bus)
    third = await inbox.next()
    assert earlier_deliveries(third) == 2
    await third.ack()


async def test_messages_are_published_together_in_their_order(bound_queue: BoundQueue) -> None:
    bodies = [b"", *(b"%d" % number for number in range(200)), b"x" * 300_000]
    envelopes = [Envelope(body=body, type="test", headers={"n": 1}) for body in bodies]
    outcomes = await bound_queue.bus.publish_all(bound_queue.exchange, bound_queue.queue.name, envelopes)
    assert outcomes == [None] * len(bodies)
    inbox = Inbox()
    await bound_queue.bus.consume(bound_queue.queue, inbox, prefetch=10)
    assert [(await inbox.next()).body for _ in bodies] == bodies
    # What is published alone later is confirmed as before.
    await bound_queue.publish(b"after")
    assert (await inbox.next()).body == b"after"


async def test_each_of_messages_that_are_published_together_has_its_own_error(transport: Transport) -> None:
    ground = await bound_queue_factory(max_length=2, dead_letter_exchange=None)(transport)
    envelopes = [Envelope(body=b"%d" % number, type="test") for number in range(20)]
    publish_twenty = partial(ground.bus.publish_all, ground.exchange, ground.queue.name, envelopes)
    outcomes = await ground.bus.publish_all(ground.exchange, "nobody", envelopes)
    assert [type(outcome) for outcome in outcomes] == [Unroutable] * 20
    confirmed = 0
    async with asyncio.timeout(15):
        # A quorum queue takes some over its limit before it refuses.
        while not isinstance((outcomes := await publish_twenty())[-1], QueueFull):
            confirmed += outcomes.count(None)
            await asyncio.sleep(0.05)
    confirmed += outcomes.count(None)
    assert (await ground.bus.count([ground.queue]))[ground.queue.name].messages == confirmed >= 2


async def test_publishing_goes_on_after_the_connection_was_lost(bound_queue: BoundQueue) -> None:
    inbox, bus = Inbox(), bound_queue.bus
    await bus.consume(bound_queue.queue, inbox, prefetch=10)
    await bound_queue.publish(b"before")
    await inbox.next()
    assert (bus.connected, bus.reconnects) == (True, 0)
    await bound_queue.transport.drop_connection(bus)
    await bound_queue.publish(b"after")
    # The acknowledgement of the first may have been lost with the connection: then it comes again.
    while (await inbox.next()).body != b"after":
        pass
    await wait_until(lambda: bool(bus.connected and bus.reconnects))
    await bus.close()
    assert not bus.connected


async def test_nothing_is_published_while_its_process_may_not_also_nothing_that_waited_for_a_connection(
    bound_queue: BoundQueue,
) -> None:
    bus, inbox, asked = bound_queue.bus, Inbox(), asyncio.Event()
    await bus.consume(bound_queue.queue, inbox, prefetch=2)
    allowed = False

    def may_publish() -> bool:
        asked.set()
        return allowed

    bus.publish_only_while(may_publish)
    envelope = Envelope(body=b"never", type="test")
    with pytest.raises(BrokerUnavailable):
        await bus.publish(bound_queue.exchange, bound_queue.queue.name, envelope, timeout_seconds=0.3)
    await bound_queue.transport.drop_connection(bus)
    asked.clear()
    publishing = asyncio.create_task(bound_queue.publish(b"later"))
    await asked.wait()
    assert not publishing.done()
    allowed = True
    await publishing
    assert (await inbox.next()).body == b"later"
    assert inbox.deliveries.empty()


async def test_a_cancelled_consumer_takes_no_more_and_loses_nothing(bound_queue: BoundQueue) -> None:
    first, second = Inbox(), Inbox()
    consumer = await bound_queue.bus.consume(bound_queue.queue, first, prefetch=10)
    await consumer.cancel()
    assert not consumer.active
    await bound_queue.publish(b"x")
    await asyncio.sleep(0.2)
    assert first.deliveries.empty()
    await bound_queue.bus.consume(bound_queue.queue, second, prefetch=1)
    assert (await second.next()).body == b"x"


async def test_a_drain_waits_for_the_running_handlers(bound_queue: BoundQueue) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def slow(delivery: Delivery) -> None:
        started.set()
        await asyncio.sleep(0.3)
        await delivery.ack()
        ended.set()

    consumer = await bound_queue.bus.consume(bound_queue.queue, slow, prefetch=1)
    await bound_queue.publish(b"x")
    await started.wait()
    assert await consumer.drain(10)
    assert ended.is_set()
    again = Inbox()
    await bound_queue.bus.consume(bound_queue.queue, again, prefetch=1)
    await asyncio.sleep(0.3)
    assert again.deliveries.empty()


@pytest.mark.parametrize(
    ("arguments", "times"),
    [({"delivery_limit": None}, 3), ({"kind": "classic", "delivery_limit": None, "dead_letter_exchange": None}, 2)],
    ids=["quorum", "classic, which does not count"],
)
async def test_what_its_handler_breaks_on_every_time_is_given_up(
    transport: Transport, arguments: dict[str, object], times: int
) -> None:
    ground = await bound_queue_factory(**arguments)(transport)
    inbox, graveyard = Inbox("nothing"), Inbox()

    async def breaks(delivery: Delivery) -> None:
        await inbox(delivery)
        if delivery.body == b"poison":
            raise RuntimeError("broken")
        await delivery.ack()

    await ground.bus.consume(ground.dead, graveyard, prefetch=1)
    await ground.bus.consume(ground.queue, breaks, prefetch=1)
    await ground.publish(b"poison")
    assert [(await inbox.next()).body for _ in range(times)] == [b"poison"] * times
    if ground.queue.dead_letter_exchange:
        dead = await graveyard.next()
        assert (dead.body, dead.headers["x-first-death-reason"]) == (b"poison", "rejected")
    await ground.publish(b"after")
    assert (await inbox.next()).body == b"after"


async def test_a_handler_that_found_the_broker_away_is_called_again(transport: Transport) -> None:
    ground = await bound_queue_factory(delivery_limit=None)(transport)
    inbox = Inbox()

    async def is_away_for_long(delivery: Delivery) -> None:
        if earlier_deliveries(delivery) < 5:
            raise BrokerUnavailable("away")
        await inbox(delivery)

    await ground.bus.consume(ground.queue, is_away_for_long, prefetch=1)
    await ground.publish(b"x")
    assert (await inbox.next()).body == b"x"


async def test_a_queue_unused_for_its_time_is_gone(transport: Transport) -> None:
    ground = await bound_queue_factory(kind="classic", expires_ms=300, delivery_limit=None, dead_letter_exchange=None)(
        transport
    )
    consumer = await ground.bus.consume(ground.queue, Inbox(), prefetch=1)
    await ground.publish(b"x")
    await consumer.drain(1)
    async with asyncio.timeout(15):
        while True:
            try:
                await ground.publish(b"y")
            except Unroutable:
                break
            except QueueFull:
                pass  # RabbitMQ nacks what comes to a queue that ends at this moment
            await asyncio.sleep(0.1)


class QueueLossRecorder:
    """Counts how often a queue was said to be lost."""

    times = 0

    def __call__(self) -> None:
        self.times += 1

    async def wait_called(self, times: int = 1) -> None:
        await wait_until(lambda: self.times >= times, seconds=15)


#: A queue as a client has one for its replies.
private = bound_queue_factory(kind="classic", expires_ms=600_000, delivery_limit=None, dead_letter_exchange=None)


async def wait_until_routed(bound_queue: BoundQueue, body: bytes) -> None:
    async with asyncio.timeout(15):
        while True:
            try:
                await bound_queue.publish(body)
                break
            except Unroutable:
                await asyncio.sleep(0.05)


async def test_a_queue_deleted_with_its_messages_is_said_to_be_lost_and_consumed_again(transport: Transport) -> None:
    ground = await private(transport)
    inbox, alarm = Inbox("nothing"), QueueLossRecorder()
    consumer = await ground.bus.consume(ground.queue, inbox, prefetch=1, on_queue_lost=alarm)
    for times in (1, 2):
        for body in (b"taken", b"pending", b"pending, too"):
            await ground.publish(body)
        taken = await inbox.next()
        assert alarm.times == times - 1
        await transport.delete_queue(ground.queue.name)
        await alarm.wait_called(times)
        await wait_until_routed(ground, b"after")
        after = await inbox.next()
        assert after.body == b"after"
        await taken.ack()  # of a queue that is gone: it does nothing
        await after.ack()
    assert (consumer.active, alarm.times) == (True, 2)


async def test_a_lost_connection_is_no_lost_queue(transport: Transport) -> None:
    ground = await private(transport)
    inbox, alarm = Inbox("nothing"), QueueLossRecorder()
    await ground.bus.consume(ground.queue, inbox, prefetch=1, on_queue_lost=alarm)
    await ground.publish(b"x")
    await inbox.next()
    await transport.drop_connection(ground.bus)
    assert (await inbox.next()).redelivered
    assert alarm.times == 0


async def test_a_queue_lost_while_the_connection_was_away_is_missed_whoever_declares_first(
    transport: Transport,
) -> None:
    ground = await private(transport)
    inbox, alarm, graveyard = Inbox(), QueueLossRecorder(), Inbox()
    for _ in range(3):  # their declarations would make the queue again, too
        await ground.bus.consume(ground.dead, graveyard, prefetch=1)
    await ground.bus.consume(ground.queue, inbox, prefetch=1, on_queue_lost=alarm)
    await transport.lose_queue(ground.bus, ground.queue.name)
    await alarm.wait_called()
    await wait_until_routed(ground, b"after")
    assert (await inbox.next()).body == b"after"
    assert alarm.times == 1


async def test_who_was_cancelled_hears_of_no_loss(transport: Transport) -> None:
    ground = await private(transport)
    alarm, graveyard = QueueLossRecorder(), Inbox()
    consumer = await ground.bus.consume(ground.queue, Inbox(), prefetch=1, on_queue_lost=alarm)
    await ground.bus.consume(ground.dead, graveyard, prefetch=1)
    await consumer.drain(1)
    await transport.lose_queue(ground.bus, ground.queue.name)
    await ground.bus.publish(ground.topology.exchanges[1], "", Envelope(body=b"x", type="test"))
    await graveyard.next()  # everything was declared again
    assert alarm.times == 0


async def test_an_exclusive_queue_ends_with_its_connection_and_is_declared_by_the_next(transport: Transport) -> None:
    made = await bound_queue_factory()(transport)
    queue = Queue(f"{made.queue.name}.own", "classic", exclusive=True)
    topology = Topology((made.exchange,), (queue,), (Binding(made.exchange, queue, "own"),))
    owner, received = await transport.connect(), asyncio.Queue[bytes]()

    async def take(delivery: Delivery) -> None:
        await delivery.ack()
        received.put_nowait(delivery.body)

    await owner.declare(topology)
    await owner.consume(queue, take, prefetch=1)
    await made.publish(b"1", key="own")
    assert await asyncio.wait_for(received.get(), 10) == b"1"
    await transport.drop_connection(owner)
    async with asyncio.timeout(20):
        while received.empty():
            with contextlib.suppress(Unroutable, QueueFull):  # RabbitMQ 4.3 nacks what comes while it deletes the queue
                await made.publish(b"2", key="own")
            await asyncio.sleep(0.05)
    await owner.close()
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(QueueFull):
                try:
                    await made.publish(b"3", key="own")
                except Unroutable:
                    break
            await asyncio.sleep(0.05)


async def test_a_queue_deleted_over_the_bus_is_declared_no_more(transport: Transport) -> None:
    ground = await private(transport)
    graveyard = Inbox()
    await ground.bus.consume(ground.dead, graveyard, prefetch=1)
    consumer = await ground.bus.consume(ground.queue, Inbox(), prefetch=1)
    await consumer.drain(1)
    for _ in range(2):  # one that is not there is no error
        await ground.bus.delete(ground.queue)
    await transport.drop_connection(ground.bus)
    await ground.bus.publish(ground.topology.exchanges[1], "", Envelope(body=b"x", type="test"))
    await graveyard.next()  # everything was declared again
    with pytest.raises(Unroutable):
        await ground.publish(b"x")


async def test_what_is_not_kept_is_not_declared_again(bound_queue: BoundQueue) -> None:
    passing = Queue(f"{bound_queue.queue.name}.passing", "classic")
    key = passing.name
    await bound_queue.bus.declare(
        Topology((bound_queue.exchange,), (passing,), (Binding(bound_queue.exchange, passing, key),)), redeclare=False
    )
    await bound_queue.publish(b"there", key=key)
    inbox = Inbox()
    await bound_queue.bus.consume(bound_queue.queue, inbox, prefetch=10)
    await bound_queue.transport.lose_queue(bound_queue.bus, passing.name)
    await wait_until_routed(bound_queue, b"again")
    while (await inbox.next()).body != b"again":
        pass  # everything that is kept was declared again
    with pytest.raises(Unroutable):
        await bound_queue.publish(b"lost", key=key)


async def test_a_declaration_that_is_cancelled_ends_and_costs_no_connection(bound_queue: BoundQueue) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await bound_queue.bus.declare(bound_queue.topology)
    took = loop.time() - began
    for number in range(60):
        declaring = asyncio.create_task(bound_queue.bus.declare(bound_queue.topology))
        await asyncio.sleep(took * number / 60)
        if declaring.cancel():
            await asyncio.wait([declaring], timeout=5)
            assert declaring.cancelled()
    await bound_queue.bus.declare(bound_queue.topology)
    assert bound_queue.bus.reconnects == 0


async def test_waiting_messages_and_consumers_are_counted_up_to_a_queue_that_is_not_there(
    bound_queue: BoundQueue,
) -> None:
    queue = bound_queue.queue
    for body in (b"1", b"2"):
        await bound_queue.publish(body)
    async with asyncio.timeout(30):
        # A quorum queue counts a message a moment after its confirm.
        while await bound_queue.bus.count([queue, Queue("t.nowhere", "classic")]) != {
            queue.name: QueueCount(messages=2, consumers=0)
        }:
            await asyncio.sleep(0.05)
    assert await bound_queue.bus.count([]) == {}

    async def hold(_: Delivery) -> None:
        await asyncio.Event().wait()

    consumers = [await bound_queue.bus.consume(queue, hold, prefetch=1) for _ in range(2)]
    async with asyncio.timeout(30):
        while await bound_queue.bus.count([queue]) != {queue.name: QueueCount(messages=0, consumers=2)}:
            await asyncio.sleep(0.05)
    for consumer in consumers:
        await consumer.drain(0)
