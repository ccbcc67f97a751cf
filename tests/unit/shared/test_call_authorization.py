"""What authorizes a client's calls: proofs where `info` allows them, and else the token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from quintain.bus.base import Delivery
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.contracts.invoke import OutputMessage, Result, TokenUsage
from quintain.contracts.session import Info, SessionState
from quintain.contracts.token import SessionToken
from quintain.errors import BudgetUnavailable, Unauthorized
from quintain.routes import PROOF_HEADER, TOKEN_HEADER
from quintain.rpc.client import RpcClient
from quintain.rpc.credentials import call_credential
from quintain.rpc.server import send_reply
from quintain.topology import METADATA_QUEUE, METADATA_TOPOLOGY, UNROUTED_QUEUE, target_queue, target_topology

ANSWER = Result(output=[OutputMessage(content="yes")], raw_text="yes", target="a", call_count=1, max_calls=2)


@dataclass
class MixedFleet:
    """Answers `info` as one metadata service, and calls as one worker, whose releases a test chooses."""

    bus: MemoryBus
    client: Client
    token: SessionToken
    proof_targets: list[str] | None = None
    workers_read_proofs: bool = True
    has_info: bool = True
    #: What each call carried.
    authorizations: list[str] = field(default_factory=list)

    async def on_call(self, delivery: Delivery) -> None:
        await delivery.ack()
        is_proof = PROOF_HEADER in delivery.headers
        self.authorizations.append("proof" if is_proof else "token")
        assert call_credential(delivery, delivery.routing_key).matches(self.token.sha256)
        assert (delivery.headers[TOKEN_HEADER] == self.token.text) is not is_proof
        await send_reply(self.bus, delivery, Unauthorized() if is_proof and not self.workers_read_proofs else ANSWER)

    async def on_info(self, delivery: Delivery) -> None:
        await delivery.ack()
        assert delivery.headers[TOKEN_HEADER] == self.token.text
        info = Info(
            session_id=self.token.id,
            target_name="a",
            max_calls=9,
            call_count=0,
            available_targets=["a", "b"],
            token_usage=TokenUsage(),
            state=SessionState.OPEN,
            now=5_000_000,
            proof_targets=self.proof_targets,
        )
        await send_reply(self.bus, delivery, info if self.has_info else BudgetUnavailable())


@pytest.fixture
async def fleet() -> AsyncIterator[MixedFleet]:
    memory = MemoryBroker()
    bus, token = memory.connect(), SessionToken.mint()
    rpc_client = RpcClient(bus)
    await bus.declare(METADATA_TOPOLOGY + target_topology("a") + target_topology("b"))
    await rpc_client.start()
    mixed = MixedFleet(bus, Client(AmqpTransport(rpc_client, token.text)), token)
    for queue in (target_queue("a"), target_queue("b"), UNROUTED_QUEUE):
        await bus.consume(queue, mixed.on_call, prefetch=10)
    await bus.consume(METADATA_QUEUE, mixed.on_info, prefetch=10)
    yield mixed
    await rpc_client.close()
    await bus.close()
    memory.close()


async def test_beside_an_older_metadata_service_calls_carry_the_token(fleet: MixedFleet) -> None:
    for target in ("a", "b", ""):
        await fleet.client.invoke("x", target=target)
    assert fleet.authorizations == ["token"] * 3


async def test_while_nothing_is_known_calls_carry_the_token(fleet: MixedFleet) -> None:
    fleet.has_info = False
    await fleet.client.invoke("x", target="a")
    assert fleet.authorizations == ["token"]


async def test_only_targets_whose_workers_all_read_proofs_get_them(fleet: MixedFleet) -> None:
    fleet.proof_targets = ["a"]
    for target in ("a", "b", ""):
        await fleet.client.invoke("x", target=target)
    assert fleet.authorizations == ["proof", "token", "token"]


async def test_the_first_call_carries_a_proof_and_so_does_one_without_a_valid_target(fleet: MixedFleet) -> None:
    fleet.proof_targets = ["a", "b"]
    for target in ("b", ""):
        await fleet.client.invoke("x", target=target)
    assert fleet.authorizations == ["proof"] * 2


async def test_a_refused_proof_is_replaced_only_if_the_metadata_service_says_so(fleet: MixedFleet) -> None:
    fleet.proof_targets = ["a"]
    await fleet.client.invoke("x", target="a")
    # Not by the word of a worker, who may want the token.
    fleet.workers_read_proofs = False
    with pytest.raises(Unauthorized):
        await fleet.client.invoke("x", target="a")
    fleet.proof_targets = None
    await fleet.client.invoke("x", target="a")
    assert fleet.authorizations == ["proof", "proof", "proof", "token"]
