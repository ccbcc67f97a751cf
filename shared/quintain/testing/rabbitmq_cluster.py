"""A RabbitMQ cluster of our own: several nodes on this machine, each of which may be killed and started again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quintain.testing.rabbitmq_node import Node, home_of_nodes
from quintain.testing.under_test import BrokerAdmin


@dataclass(frozen=True, slots=True)
class ClusterUnderTest:
    """A cluster. ``url`` names all its nodes."""

    nodes: tuple[Node, ...]

    @property
    def url(self) -> str:
        """As `QUINTAIN_BROKER_URL` takes it."""
        return ",".join(node.url for node in self.nodes)

    @property
    def admin(self) -> BrokerAdmin:
        """The first node's, which sees all of the cluster."""
        return self.nodes[0].admin


@contextlib.contextmanager
def private_cluster(server: Path, environment: Mapping[str, str], *, size: int = 3) -> Iterator[ClusterUnderTest]:
    """A cluster of this ``rabbitmq-server``, until left. Raises `BrokerUnavailable` where it does not start."""
    with home_of_nodes(server, environment) as home:
        first = Node(home, "node1")
        first.start()
        others = [Node(home, f"node{number}", joins=first.name) for number in range(2, size + 1)]
        for node in others:
            node.begin()
        for node in others:
            node.answers()
        yield ClusterUnderTest((first, *others))
