"""What authorizes a client's calls: a proof of each call, and never the token."""

from __future__ import annotations

import pytest

from quintain.bus.base import Delivery
from quintain.bus.memory import MemoryBroker
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import PROOF_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import OutputMessage, Result
from quintain.errors import Unauthorized
from quintain.rpc.requests import RpcClient
from quintain.rpc.server import delivery_credential, send_reply
from quintain.topology import METADATA_TOPOLOGY, UNROUTED_QUEUE, target_queue, target_topology

ANSWER = Result(output=[OutputMessage(content="yes")], target="a", call_count=1, max_calls=2)


@pytest.mark.parametrize("target", ["a", ""])
async def test_a_call_carries_a_proof_also_after_one_was_refused(target: str) -> None:
    memory, token, seen = MemoryBroker(), SessionToken.mint(), list[Delivery]()
    bus = memory.connect()
    rpc_client = RpcClient(bus)

    async def on_call(delivery: Delivery) -> None:
        await delivery.ack()
        seen.append(delivery)
        await send_reply(bus, delivery, Unauthorized() if len(seen) == 1 else ANSWER)

    await bus.declare(METADATA_TOPOLOGY + target_topology("a"))
    await rpc_client.start()
    for queue in (target_queue("a"), UNROUTED_QUEUE):
        await bus.consume(queue, on_call, prefetch=10)
    client = Client(AmqpTransport(rpc_client, token.text))
    with pytest.raises(Unauthorized):  # also by a hostile worker, who would get the token by refusing
        await client.invoke("x", target=target)
    await client.invoke("x", target=target)
    assert len(seen) == 2
    for delivery in seen:
        assert PROOF_HEADER in delivery.headers
        assert delivery.headers[TOKEN_HEADER] == token.id
        assert delivery_credential(delivery).matches(token.sha256)
    await rpc_client.close()
    await bus.close()
    memory.close()
