"""What is declared at the broker: names and arguments as ``docs/protocol/topology.md`` fixes them."""

from __future__ import annotations

import pytest

from quintain.routes import ADMIT, AMEND, HEARTBEAT, INFO, INVOKE, LIST, OPEN, REGISTER, RELEASE, RESERVE, SETTLE, SHOW
from quintain.topology import (
    EVALUATOR_TOPOLOGY,
    METADATA_TOPOLOGY,
    POISON_TOPOLOGY,
    Topology,
    backlog_queue,
    reply_topology,
    target_queue,
    target_topology,
)


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
    names = [queue.name for queue in both.queues]
    assert names == [f"quintain.target.{name}" for name in ("a", "a/backlog", "b", "b/backlog")]
    assert len(both.exchanges) == len(target_topology("a").exchanges)
    assert len(both.bindings) == 4
    assert Topology() + both == both


def test_without_a_queue_is_without_what_was_bound_to_it_and_its_exchanges_stay() -> None:
    both = target_topology("a") + target_topology("b")
    left = both.without(target_queue("b")).without(backlog_queue("b"))
    assert left.queues == target_topology("a").queues
    assert left.bindings == target_topology("a").bindings
    assert left.exchanges == both.exchanges
    assert left.without(target_queue("b")) == left
