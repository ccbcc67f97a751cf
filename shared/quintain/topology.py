"""The AMQP topology as data: exchanges, queues and bindings, constants of the protocol (``protocol.md`` §1).

Whichever service starts first declares it. What operators tune is set by policies, so that changing a setting never
makes a declaration fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
DAY_MS: Final = 24 * 60 * MINUTE_MS

Argument = str | int | bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange. What it cannot route goes to ``alternate``, where there is one."""

    name: str
    kind: Literal["topic", "direct", "fanout"]
    alternate: str | None = None

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments of its declaration."""
        return {"alternate-exchange": self.alternate} if self.alternate else {}


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue. Durations are in milliseconds; ``expires_ms`` is how long it lives unused."""

    name: str
    kind: Literal["quorum", "classic"]
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    delivery_limit: int | None = None
    dead_letter_exchange: str | None = None

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments of its declaration. A bounded queue refuses the publish rather than drop its head."""
        optional: dict[str, Argument | None] = {
            "x-queue-type": self.kind,
            "x-message-ttl": self.message_ttl_ms,
            "x-expires": self.expires_ms,
            "x-max-length": self.max_length,
            "x-delivery-limit": self.delivery_limit,
            "x-dead-letter-exchange": self.dead_letter_exchange,
            "x-overflow": "reject-publish" if self.max_length or self.dead_letter_exchange else None,
            "x-dead-letter-strategy": "at-least-once" if self.dead_letter_exchange else None,
        }
        return {key: value for key, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Binding:
    """What reaches the queue: this exchange's messages with this routing key."""

    exchange: Exchange
    queue: Queue
    key: str = ""


@dataclass(frozen=True, slots=True)
class Topology:
    """A set of things to declare, in the order exchanges, queues, bindings."""

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
        """The same without this queue and what is bound to it."""
        return Topology(
            self.exchanges,
            tuple(item for item in self.queues if item.name != queue.name),
            tuple(one for one in self.bindings if one.queue.name != queue.name),
        )


UNROUTED = Exchange("quintain.unrouted", "fanout")
INVOKE = Exchange("quintain.invoke", "topic", alternate=UNROUTED.name)
METADATA = Exchange("quintain.metadata", "direct")
LEDGER = Exchange("quintain.ledger", "direct")
REPLY = Exchange("quintain.reply", "direct")
CANCEL = Exchange("quintain.cancel", "fanout")
HOST = Exchange("quintain.host", "direct")
RUN = Exchange("quintain.run", "direct")
DEAD = Exchange("quintain.dead", "fanout")
DISCOVERY = Exchange("quintain.discovery", "fanout")
POISON = Exchange("quintain.poison", "fanout")
POISON_LOCK = Exchange("quintain.poison.turn", "fanout")

UNROUTED_QUEUE = Queue("quintain.metadata.unrouted", "quorum")
METADATA_QUEUE = Queue("quintain.metadata", "quorum")
ADMIT_QUEUE = Queue("quintain.ledger.admit", "quorum")
SETTLE_QUEUE = Queue("quintain.ledger.settle", "quorum")
DEAD_QUEUE = Queue("quintain.metadata.dead", "quorum")
POISON_QUEUE = Queue("quintain.poison", "quorum")
#: Holds one message while somebody goes through the poison queue.
POISON_LOCK_QUEUE = Queue(
    "quintain.poison.turn", "classic", message_ttl_ms=MINUTE_MS, expires_ms=10 * MINUTE_MS, max_length=1
)


def target_queue(target: str) -> Queue:
    """The queue of the calls that wait for a worker of this target."""
    return Queue(
        f"quintain.target.{target}",
        "quorum",
        message_ttl_ms=DAY_MS,
        max_length=100_000,
        delivery_limit=100,
        dead_letter_exchange=DEAD.name,
    )


def target_topology(target: str) -> Topology:
    """The queue of a target, bound where invoke requests arrive."""
    queue = target_queue(target)
    return Topology((UNROUTED, INVOKE, DEAD), (queue,), (Binding(INVOKE, queue, target),))


def reply_topology(queue_name: str, key: str) -> Topology:
    """A client's reply queue under its own key: durable and not exclusive, so that a reconnect finds it again."""
    queue = Queue(queue_name, "classic", expires_ms=10 * MINUTE_MS)
    return Topology((REPLY,), (queue,), (Binding(REPLY, queue, key),))


def cancel_topology(random: str) -> Topology:
    """One worker's queue of cancellations, named by the worker, so that a reconnect finds what came meanwhile."""
    queue = Queue(f"quintain.cancel.{random}", "classic", expires_ms=MINUTE_MS)
    return Topology((CANCEL,), (queue,), (Binding(CANCEL, queue),))


def discovery_topology(random: str) -> Topology:
    """Where one process hears who asks for it. What it does not hear in time is of no use."""
    queue = Queue(f"quintain.discovery.{random}", "classic", message_ttl_ms=10 * SECOND_MS, expires_ms=MINUTE_MS)
    return Topology((DISCOVERY, REPLY), (queue,), (Binding(DISCOVERY, queue),))


def host_topology(target: str) -> Topology:
    """Where leases of a hosted target are asked for: whichever host has a free slot takes the next request."""
    queue = Queue(f"quintain.host.{target}", "quorum")
    return Topology((HOST, RUN, REPLY), (queue,), (Binding(HOST, queue, target),))


def lease_topology(lease_id: str) -> Topology:
    """One lease's own queue, for everything asked of its instance. No target's name has a slash."""
    queue = Queue(f"quintain.lease.{lease_id}", "classic", expires_ms=10 * MINUTE_MS)
    return Topology((HOST,), (queue,), (Binding(HOST, queue, f"lease/{lease_id}"),))


def run_topology(run_id: str) -> Topology:
    """What one run says to its controller."""
    queue = Queue(f"quintain.run.{run_id}", "classic", expires_ms=10 * MINUTE_MS)
    return Topology((RUN,), (queue,), (Binding(RUN, queue, run_id),))


#: The operations that a token opens: an evaluator's, then an administrator's.
OPERATION_KEYS = (
    *("info", "open", "amend", "close", "reserve", "release", "cancel"),
    *("list", "show", "targets", "pause", "resume", "workers", "drain"),
)

#: What the metadata service stands on.
METADATA_TOPOLOGY = Topology(
    (UNROUTED, INVOKE, METADATA, LEDGER, REPLY, CANCEL, DEAD, POISON, HOST, RUN, DISCOVERY),
    (UNROUTED_QUEUE, METADATA_QUEUE, ADMIT_QUEUE, SETTLE_QUEUE, DEAD_QUEUE, POISON_QUEUE),
    (
        Binding(UNROUTED, UNROUTED_QUEUE),
        Binding(DEAD, DEAD_QUEUE),
        Binding(POISON, POISON_QUEUE),
        *(Binding(METADATA, METADATA_QUEUE, key) for key in OPERATION_KEYS),
        *(Binding(LEDGER, ADMIT_QUEUE, key) for key in ("register", "heartbeat", "admit")),
        Binding(LEDGER, SETTLE_QUEUE, "settle"),
    ),
)

#: What an evaluator needs to exist before it may publish.
EVALUATOR_TOPOLOGY = Topology((UNROUTED, INVOKE, METADATA, REPLY))

#: What an operator who looks at the poison queue needs.
POISON_TOPOLOGY = Topology((POISON,), (POISON_QUEUE,), (Binding(POISON, POISON_QUEUE),))
POISON_LOCK_TOPOLOGY = Topology((POISON_LOCK,), (POISON_LOCK_QUEUE,), (Binding(POISON_LOCK, POISON_LOCK_QUEUE),))
