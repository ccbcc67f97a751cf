"""The policies of deploy/rabbitmq/definitions.json on a real broker: every queue that a client can fill has a limit."""

from __future__ import annotations

import re

import pytest

from quintain.bus.connect import connect_bus
from quintain.topology import METADATA_TOPOLOGY, POISON_QUEUE, target_queue, target_topology
from support.broker_users import apply_policies, broker_users
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest

pytestmark = pytest.mark.every_broker

#: Larger than any message.
MIB = 1024 * 1024


async def test_every_shared_queue_has_a_limit_in_bytes(
    breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin
) -> None:
    users = broker_users(broker_admin, breakable_broker.url)
    bus = await connect_bus(users.url("metadata"))
    try:
        await bus.declare(METADATA_TOPOLOGY + target_topology("echo"))
        apply_policies(broker_admin, users.vhost)
        limits = _effective_limits(broker_admin, users.vhost)
        queues = {queue.name for queue in (*METADATA_TOPOLOGY.queues, target_queue("echo"))}
        assert limits.keys() == queues
        for name, (size, overflow) in limits.items():
            assert 16 * MIB < size <= 2048 * MIB, name
            assert overflow == ("drop-head" if name == POISON_QUEUE.name else "reject-publish"), name
        # The arguments of the queues are as before: an older or newer service declares them again.
        await bus.declare(METADATA_TOPOLOGY + target_topology("echo"))
    finally:
        await bus.close()


def _effective_limits(admin: BrokerAdmin, vhost: str) -> dict[str, tuple[int, str]]:
    """Return the limit in bytes and what happens beyond it, by queue."""
    printed = admin.evaluate(f"""
        [io:format("~s ~0p~n", [Name, Policy]) || [{{name, {{resource, _, _, Name}}}}, {{_, Policy}}]
            <- rabbit_amqqueue:info_all(<<"{vhost}">>, [name, effective_policy_definition])]
    """)
    limits: dict[str, tuple[int, str]] = {}
    for line in printed.splitlines():
        name, _, policy = line.partition(" ")
        size = re.search(r'"max-length-bytes">>,(\d+)', policy)
        overflow = re.search(r'"overflow">>,<<"([a-z-]+)"', policy)
        if size is not None and overflow is not None:
            limits[name] = int(size[1]), overflow[1]
    return limits
