"""What is declared at the broker: names and arguments as ``docs/protocol/topology.md`` fixes them."""

from __future__ import annotations

import pytest

from quintain.routes import ADMIT, AMEND, HEARTBEAT, INFO, INVOKE, LIST, OPEN, REGISTER, RELEASE, RESERVE, SETTLE, SHOW
from quintain.topology import (
    EVALUATOR_TOPOLOGY,
    METADATA_TOPOLOGY,
    POISON_TOPOLOGY,
    Queue,
    Topology,
    reply_topology,
    target_queue,
    target_topology,
)

TARGET_ARGUMENTS = {
    "x-queue-type": "quorum",
    "x-delivery-limit": 100,
    "x-message-ttl": 24 * 3600 * 1000,
    "x-max-length": 100_000,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "quintain.dead",
    "x-dead-letter-strategy": "at-least-once",
}


def test_a_targets_queue_is_the_protocols() -> None:
    queue = target_queue("claude_base")
    assert (queue.name, queue.arguments) == ("quintain.target.claude_base", TARGET_ARGUMENTS)
    (bound,) = target_topology("claude_base").bindings
    assert (bound.exchange.name, bound.queue, bound.key) == ("quintain.invoke", queue, "claude_base")


def test_a_reply_queue_lives_ten_minutes_unused_and_is_bound_to_its_own_key() -> None:
    topology = reply_topology("quintain.reply.alice.x", "alice.x")
    (queue,) = topology.queues
    assert (queue.name, queue.arguments) == (
        "quintain.reply.alice.x",
        {"x-queue-type": "classic", "x-expires": 600_000},
    )
    (bound,) = topology.bindings
    assert (bound.exchange.name, bound.exchange.kind, bound.key) == ("quintain.reply", "direct", "alice.x")


def test_the_exchanges_are_the_protocols() -> None:
    kinds = {exchange.name: (exchange.kind, exchange.arguments) for exchange in METADATA_TOPOLOGY.exchanges}
    assert kinds == {
        "quintain.unrouted": ("fanout", {}),
        "quintain.invoke": ("topic", {"alternate-exchange": "quintain.unrouted"}),
        "quintain.metadata": ("direct", {}),
        "quintain.ledger": ("direct", {}),
        "quintain.probe": ("direct", {}),
        "quintain.reply": ("direct", {}),
        "quintain.cancel": ("fanout", {}),
        "quintain.dead": ("fanout", {}),
        "quintain.poison": ("fanout", {}),
        "quintain.host": ("direct", {}),
        "quintain.run": ("direct", {}),
        "quintain.discovery": ("fanout", {}),
        "quintain.events": ("topic", {}),
    }


def test_the_metadata_services_queues_are_the_protocols() -> None:
    assert {queue.name: queue.arguments for queue in METADATA_TOPOLOGY.queues} == {
        "quintain.metadata.unrouted": {"x-queue-type": "quorum"},
        "quintain.metadata": {"x-queue-type": "quorum"},
        "quintain.ledger.admit": {"x-queue-type": "quorum"},
        "quintain.ledger.heartbeat": {"x-queue-type": "quorum"},
        "quintain.ledger.settle": {"x-queue-type": "quorum"},
        "quintain.metadata.dead": {"x-queue-type": "quorum"},
        "quintain.poison": {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000},
    }


@pytest.mark.parametrize("route", [INFO, OPEN, AMEND, RESERVE, RELEASE, LIST, SHOW, REGISTER, HEARTBEAT, ADMIT, SETTLE])
def test_every_route_of_the_metadata_service_is_bound_to_one_queue(route: object) -> None:
    exchange, key = route.exchange, route.key  # type: ignore[attr-defined]
    bound = [one.queue.name for one in METADATA_TOPOLOGY.bindings if (one.exchange, one.key) == (exchange, key)]
    assert len(bound) == 1


def test_what_is_bound_is_declared() -> None:
    for topology in (
        METADATA_TOPOLOGY,
        EVALUATOR_TOPOLOGY,
        POISON_TOPOLOGY,
        target_topology("a"),
        reply_topology("q", "k"),
    ):
        for bound in topology.bindings:
            assert bound.exchange in topology.exchanges
            assert bound.queue in topology.queues
        for exchange in topology.exchanges:
            assert exchange.alternate is None or exchange.alternate in {one.name for one in topology.exchanges}
        for queue in topology.queues:
            assert queue.dead_letter_exchange in {None, *(one.name for one in topology.exchanges)}


def test_an_alternate_exchange_is_declared_before_what_names_it() -> None:
    for topology in (METADATA_TOPOLOGY, EVALUATOR_TOPOLOGY, target_topology("a")):
        names = [exchange.name for exchange in topology.exchanges]
        assert names.index("quintain.unrouted") < names.index(INVOKE.exchange.name)


def test_together_means_everything_once() -> None:
    both = target_topology("a") + target_topology("b") + target_topology("a")
    assert [queue.name for queue in both.queues] == ["quintain.target.a", "quintain.target.b"]
    assert len(both.exchanges) == len(target_topology("a").exchanges)
    assert len(both.bindings) == 2
    assert Topology() + both == both


def test_a_queue_without_a_limit_may_not_refuse() -> None:
    assert "x-overflow" not in Queue("plain", "classic").arguments


def test_without_a_queue_is_without_what_was_bound_to_it_and_its_exchanges_stay() -> None:
    both = target_topology("a") + target_topology("b")
    left = both.without(target_queue("b"))
    assert left.queues == target_topology("a").queues
    assert left.bindings == target_topology("a").bindings
    assert left.exchanges == both.exchanges
    assert left.without(target_queue("b")) == left
