"""The policies of deploy/rabbitmq/definitions.json on a real broker: every queue that a client can fill has a limit."""

from __future__ import annotations

import json
import re
from typing import Any

import pika
import pytest

from quintain.bus.connect import connect_bus
from quintain.topology import METADATA_TOPOLOGY, POISON_QUEUE, target_topology
from support.broker_users import USERS, apply_policies, broker_users, declarable
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
        limits = _effective_policies(broker_admin, users.vhost)
        queues = {queue.name for queue in (*METADATA_TOPOLOGY.queues, *target_topology("echo").queues)}
        assert limits.keys() == queues
        for name, policy in limits.items():
            assert 16 * MIB < policy["max-length-bytes"] <= 2048 * MIB, name
            assert policy["overflow"] == ("drop-head" if name == POISON_QUEUE.name else "reject-publish"), name
        # The policies changed no argument: a service that declares the queues again is not refused.
        await bus.declare(METADATA_TOPOLOGY + target_topology("echo"))
    finally:
        await bus.close()


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_every_name_that_a_user_may_declare_has_limits_whatever_it_declares_there(
    breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin, kind: str
) -> None:
    users = broker_users(broker_admin, breakable_broker.url)
    apply_policies(broker_admin, users.vhost)
    names: set[str] = set()
    for user in USERS:
        with pika.BlockingConnection(pika.URLParameters(users.url(user))) as connection:
            channel = connection.channel()
            for name in declarable(user, user):
                if name not in names:
                    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
                    names.add(name)
    policies = _effective_policies(broker_admin, users.vhost)
    assert policies.keys() == names
    wanted = {"max-length-bytes", "max-age"} if kind == "stream" else {"max-length", "max-length-bytes", "overflow"}
    for name, policy in policies.items():
        # What waits for a service is not thrown away because the service is gone.
        shared = re.match(r"quintain\.(metadata|ledger\.|poison$|target\.)", name)
        expiring = set() if shared or kind == "stream" else {"expires"}
        assert policy.keys() >= wanted | expiring, name
        assert not (shared and "expires" in policy), name


def _effective_policies(admin: BrokerAdmin, vhost: str) -> dict[str, dict[str, Any]]:
    """Return what policies say of each queue."""
    printed = admin.evaluate(f"""
        [io:format("~s ~s~n", [Name, rabbit_json:encode(maps:from_list(Policy))])
            || [{{name, {{resource, _, _, Name}}}}, {{_, Policy}}]
            <- rabbit_amqqueue:info_all(<<"{vhost}">>, [name, effective_policy_definition])]
    """)
    return {name: json.loads(policy) for name, _, policy in (line.partition(" ") for line in printed.splitlines())}
