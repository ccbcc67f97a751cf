"""What is declared at the broker: names and arguments as ``docs/protocol/topology.md`` fixes them."""

from __future__ import annotations

from quintain.routes import INVOKE
from quintain.topology import (
    METADATA_TOPOLOGY,
    POISON_TOPOLOGY,
    Topology,
    admit_topology,
    backlog_queue,
    conversation_topology,
    exclusive_reply_topology,
    host_topology,
    lease_topology,
    reply_topology,
    target_queue,
    target_topology,
)


def test_the_metadata_service_declares_every_exchange_and_the_others_their_queues_alone() -> None:
    others = (
        *(target_topology("a"), conversation_topology("a", "i"), admit_topology("x")),
        *(reply_topology("q", "k"), exclusive_reply_topology("q", "k")),
        *(host_topology("a"), lease_topology("l")),
    )
    declared = {exchange.name for exchange in METADATA_TOPOLOGY.exchanges}
    for topology in (METADATA_TOPOLOGY, POISON_TOPOLOGY, *others):
        assert {bound.exchange.name for bound in topology.bindings} <= declared
        assert {queue.dead_letter_exchange for queue in topology.queues} <= {None, *declared}
        assert {bound.queue for bound in topology.bindings} <= set(topology.queues)
    assert not any(topology.exchanges for topology in others)


def test_an_alternate_exchange_is_declared_before_what_names_it() -> None:
    names = [exchange.name for exchange in METADATA_TOPOLOGY.exchanges]
    assert names.index("quintain.unrouted") < names.index(INVOKE.exchange.name)


def test_together_means_everything_once() -> None:
    both = target_topology("a") + target_topology("b") + target_topology("a")
    names = [queue.name for queue in both.queues]
    assert names == [f"quintain.target.{name}" for name in ("a", "a/backlog", "b", "b/backlog")]
    assert METADATA_TOPOLOGY + METADATA_TOPOLOGY == METADATA_TOPOLOGY
    assert len(both.bindings) == 6
    assert Topology() + both == both


def test_without_a_queue_is_without_what_was_bound_to_it_and_its_exchanges_stay() -> None:
    both = METADATA_TOPOLOGY + target_topology("a") + target_topology("b")
    left = both.without(target_queue("b")).without(backlog_queue("b"))
    assert left == METADATA_TOPOLOGY + target_topology("a")
    assert left.exchanges == both.exchanges
    assert left.without(target_queue("b")) == left
