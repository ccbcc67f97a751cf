"""The AMQP topology as data: exchanges, queues and bindings, constants of the protocol (``docs/protocol/topology.md``).

The metadata service declares the exchanges; who finds one missing for a queue of its own declares it, if its user may.
What operators tune is set by policies, so that changing a setting never makes a declaration fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
DAY_MS: Final = 24 * 60 * MINUTE_MS

#: How often a message is delivered at most, where its queue names no other limit. Consumers keep to it: since RabbitMQ
#: 4.3 a message that is given back does not count for the queue's own limit.
DELIVERY_LIMIT: Final = 100

#: How long a call may be unacknowledged: longer than any lasts. RabbitMQ 3.10 and 3.11 do not know the argument.
CONSUMER_TIMEOUT_MS: Final = 13 * 60 * MINUTE_MS

Argument = str | int | bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange; messages that it cannot route go to ``alternate``, if set."""

    name: str
    kind: Literal["topic", "direct", "fanout"]
    alternate: str | None = None

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments of its declaration."""
        return {"alternate-exchange": self.alternate} if self.alternate else {}


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue; durations are in milliseconds, ``expires_ms`` is how long it exists unused.

    It is durable, unless it is ``exclusive``: that one belongs to the connection that declared it, and ends with it.
    """

    name: str
    kind: Literal["quorum", "classic"]
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    dead_letter_exchange: str | None = None
    #: The routing key of what is dead-lettered; by default the message's own.
    dead_letter_key: str | None = None
    exclusive: bool = False

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments of its declaration; a bounded queue rejects publishes instead of dropping its head."""
        optional: dict[str, Argument | None] = {
            "x-queue-type": self.kind,
            "x-message-ttl": self.message_ttl_ms,
            "x-expires": self.expires_ms,
            "x-max-length": self.max_length,
            "x-delivery-limit": self.delivery_limit,
            "x-consumer-timeout": self.consumer_timeout_ms,
            "x-dead-letter-exchange": self.dead_letter_exchange,
            "x-dead-letter-routing-key": self.dead_letter_key,
            "x-overflow": "reject-publish" if self.max_length or self.dead_letter_exchange else None,
            "x-dead-letter-strategy": "at-least-once" if self.dead_letter_exchange and self.kind == "quorum" else None,
        }
        return {key: value for key, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Binding:
    """Binds a queue to an exchange with a routing key."""

    exchange: Exchange
    queue: Queue
    key: str = ""


@dataclass(frozen=True, slots=True)
class Topology:
    """Exchanges, queues and bindings, declared in this order; add topologies with ``+``."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = field(default=())

    def __add__(self, other: Topology) -> Topology:
        return Topology(
            tuple(dict.fromkeys(self.exchanges + other.exchanges)),
            tuple(dict.fromkeys(self.queues + other.queues)),
            tuple(dict.fromkeys(self.bindings + other.bindings)),
        )

    def without(self, queue: Queue) -> Topology:
        """Return the topology without this queue and its bindings."""
        return Topology(
            self.exchanges,
            tuple(item for item in self.queues if item.name != queue.name),
            tuple(item for item in self.bindings if item.queue.name != queue.name),
        )


UNROUTED = Exchange("quintain.unrouted", "fanout")
INVOKE = Exchange("quintain.invoke", "topic", alternate=UNROUTED.name)
#: The turns of conversations that one worker holds.
CONVERSATION = Exchange("quintain.conversation", "direct", alternate=UNROUTED.name)
#: Workers alone write to it.
BACKLOG = Exchange("quintain.backlog", "direct")
METADATA = Exchange("quintain.metadata", "direct")
LEDGER = Exchange("quintain.ledger", "direct")
#: Only metadata services write to it: probes, which say until when heartbeats were read, and what goes from one to
#: another.
PROBE = Exchange("quintain.probe", "direct")
REPLY = Exchange("quintain.reply", "direct")
HOST = Exchange("quintain.host", "direct")
DEAD = Exchange("quintain.dead", "fanout")
POISON = Exchange("quintain.poison", "fanout")

UNROUTED_QUEUE = Queue("quintain.metadata.unrouted", "quorum")
METADATA_QUEUE = Queue("quintain.metadata", "quorum")
ADMIT_QUEUE = Queue("quintain.ledger.admit", "quorum")
HEARTBEAT_QUEUE = Queue("quintain.ledger.heartbeat", "quorum")
SETTLE_QUEUE = Queue("quintain.ledger.settle", "quorum")
DEAD_QUEUE = Queue("quintain.metadata.dead", "quorum")
#: Reading it returns its messages, and RabbitMQ 4 drops a message that is returned more than 20 times: the limit is
#: higher than anybody reads. It has to be a number, as RabbitMQ 3 takes -1 for one that every return exceeds.
POISON_QUEUE = Queue("quintain.poison", "quorum", delivery_limit=1_000_000)


def target_queue(target: str) -> Queue:
    """Return the queue of calls that wait for a worker of this target."""
    return _calls_queue(f"quintain.target.{target}")


def backlog_queue(target: str) -> Queue:
    """Return the queue of what sessions published to a target beyond their share; no target's name has a slash."""
    return _calls_queue(f"quintain.target.{target}/backlog")


def _calls_queue(name: str) -> Queue:
    return Queue(
        name,
        "quorum",
        message_ttl_ms=DAY_MS,
        max_length=100_000,
        delivery_limit=DELIVERY_LIMIT,
        consumer_timeout_ms=CONSUMER_TIMEOUT_MS,
        dead_letter_exchange=DEAD.name,
    )


def held_key(target: str) -> str:
    """Return the routing key of calls that a worker has had for long, which are in the target's backlog."""
    return f"{target}/held"


def target_topology(target: str) -> Topology:
    """Return the topology of a target: its queue, bound to the exchange of invoke requests, and its backlog."""
    queue, backlog = target_queue(target), backlog_queue(target)
    bindings = Binding(INVOKE, queue, target), *(Binding(BACKLOG, backlog, key) for key in (target, held_key(target)))
    return Topology((), (queue, backlog), bindings)


#: How long a turn waits for the worker that holds its conversation, which takes it at once while it lives.
TURN_WAIT_MS: Final = 10 * SECOND_MS


def conversation_topology(target: str, incarnation: str) -> Topology:
    """Return the topology of the turns of those conversations with a target that one worker holds.

    What that worker does not take goes to the target's queue: its conversation is lost, which any worker may say.
    """
    queue = Queue(
        f"quintain.conversation.{target}/{incarnation}",
        "classic",
        message_ttl_ms=TURN_WAIT_MS,
        expires_ms=MINUTE_MS,
        consumer_timeout_ms=CONSUMER_TIMEOUT_MS,
        dead_letter_exchange=INVOKE.name,
        dead_letter_key=target,
    )
    return Topology((), (queue,), (Binding(CONVERSATION, queue, f"{target}/{incarnation}"),))


def target_of_key(key: str) -> str:
    """Return the target that the routing key of a call names: all of it, or the part before a slash."""
    return key.partition("/")[0]


#: The routing keys of the heartbeats of all services, which each metadata service reads.
HEARTBEAT_KEYS: Final = ((LEDGER, "heartbeat"), (METADATA, "beat"), (PROBE, "beat"))


def admit_topology(random: str) -> Topology:
    """Return the topology of the metadata service's own queue, which ends with its connection.

    Workers send admits to it. A copy of each heartbeat of all services comes too.
    """
    queue, key = Queue(f"{ADMIT_QUEUE.name}.{random}", "classic", exclusive=True), f"admit.{random}"
    keys = (LEDGER, key), *HEARTBEAT_KEYS
    return Topology((), (queue,), tuple(Binding(exchange, queue, each) for exchange, each in keys))


def reply_topology(queue_name: str, key: str) -> Topology:
    """Return the topology of a client's reply queue; durable and not exclusive, so that it survives a reconnect."""
    queue = Queue(queue_name, "classic", expires_ms=10 * MINUTE_MS)
    return Topology((), (queue,), (Binding(REPLY, queue, key),))


def exclusive_reply_topology(queue_name: str, key: str) -> Topology:
    """Return the topology of a reply queue that ends with its client's connection."""
    queue = Queue(queue_name, "classic", exclusive=True)
    return Topology((), (queue,), (Binding(REPLY, queue, key),))


def host_topology(target: str) -> Topology:
    """Return the topology of the queue of lease requests, which all hosts of the target consume."""
    queue = Queue(f"quintain.host.{target}", "quorum")
    return Topology((), (queue,), (Binding(HOST, queue, target),))


def lease_topology(lease_id: str) -> Topology:
    """Return the topology of the queue of a lease's host; its key cannot equal a target's name, which has no slash."""
    queue = Queue(f"quintain.lease.{lease_id}", "classic", expires_ms=10 * MINUTE_MS)
    return Topology((), (queue,), (Binding(HOST, queue, f"lease/{lease_id}"),))


#: The operations authorized by a token: those of sessions, then those of administrators.
OPERATION_KEYS = (
    *("info", "open", "amend", "close", "close_children", "reserve", "release", "cancel"),
    *("list", "show", "targets", "pause", "resume", "workers", "drain", "fleet", "quotas", "set_quota", "set_user"),
)

#: The topology that the metadata service needs.
METADATA_TOPOLOGY = Topology(
    (UNROUTED, INVOKE, CONVERSATION, BACKLOG, METADATA, LEDGER, PROBE, REPLY, DEAD, POISON, HOST),
    (UNROUTED_QUEUE, METADATA_QUEUE, ADMIT_QUEUE, HEARTBEAT_QUEUE, SETTLE_QUEUE, DEAD_QUEUE, POISON_QUEUE),
    (
        Binding(UNROUTED, UNROUTED_QUEUE),
        Binding(DEAD, DEAD_QUEUE),
        Binding(POISON, POISON_QUEUE),
        *(Binding(METADATA, METADATA_QUEUE, key) for key in OPERATION_KEYS),
        *(Binding(LEDGER, ADMIT_QUEUE, key) for key in ("register", "admit", "open_child")),
        Binding(LEDGER, HEARTBEAT_QUEUE, "heartbeat"),
        Binding(PROBE, HEARTBEAT_QUEUE, "probe"),
        Binding(LEDGER, SETTLE_QUEUE, "settle"),
    ),
)

#: The queues that every metadata service consumes, each with one consumer.
CONSUMED_QUEUES = METADATA_TOPOLOGY.without(POISON_QUEUE).queues

#: The topology needed for reading the poison queue.
POISON_TOPOLOGY = Topology((POISON,), (POISON_QUEUE,), (Binding(POISON, POISON_QUEUE),))
