"""What authorizes a client's calls: proofs where `info` allows them, and else the token."""

from __future__ import annotations

import asyncio
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
    is_closed: bool = False
    #: Answers to `info` wait for this.
    is_answering: asyncio.Event = field(default_factory=asyncio.Event)
    #: How often the metadata service was asked for information.
    questions: int = 0
    #: What each call carried.
    authorizations: list[str] = field(default_factory=list)

    async def on_call(self, delivery: Delivery) -> None:
        await delivery.ack()
        is_proof = PROOF_HEADER in delivery.headers
        self.authorizations.append("proof" if is_proof else "token")
        assert call_credential(delivery, delivery.routing_key).matches(self.token.sha256)
        assert (delivery.headers[TOKEN_HEADER] == self.token.text) is not is_proof
        is_refused = self.is_closed or (is_proof and not self.workers_read_proofs)
        await send_reply(self.bus, delivery, Unauthorized() if is_refused else ANSWER)

    async def on_info(self, delivery: Delivery) -> None:
        await delivery.ack()
        assert delivery.headers[TOKEN_HEADER] == self.token.text
        self.questions += 1
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
        await self.is_answering.wait()
        fault = Unauthorized() if self.is_closed else BudgetUnavailable()
        await send_reply(self.bus, delivery, info if self.has_info and not self.is_closed else fault)


@pytest.fixture
async def fleet() -> AsyncIterator[MixedFleet]:
    memory = MemoryBroker()
    bus, token = memory.connect(), SessionToken.mint()
    rpc_client = RpcClient(bus)
    await bus.declare(METADATA_TOPOLOGY + target_topology("a") + target_topology("b"))
    await rpc_client.start()
    mixed = MixedFleet(bus, Client(AmqpTransport(rpc_client, token.text)), token)
    mixed.is_answering.set()
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


@pytest.mark.parametrize("is_closed", [True, False])
async def test_calls_that_are_refused_together_share_a_few_questions(
    fleet: MixedFleet, monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    monkeypatch.setattr("quintain.client.refusal_checks.REFUSED_SECONDS", 3600.0)
    fleet.proof_targets = ["a"]
    await fleet.client.invoke("x", target="a")
    fleet.is_closed, fleet.workers_read_proofs, fleet.questions = is_closed, False, 0
    refused = await asyncio.gather(*(fleet.client.invoke("x", target="a") for _ in range(100)), return_exceptions=True)
    assert {type(error) for error in refused} == {Unauthorized}
    assert 1 <= fleet.questions <= 10
    assert fleet.authorizations == ["proof"] * 101


async def test_a_refused_session_is_asked_about_once_also_by_one_call_after_the_other(
    fleet: MixedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain.client.refusal_checks.REFUSED_SECONDS", 3600.0)
    fleet.proof_targets = ["a"]
    await fleet.client.invoke("x", target="a")
    fleet.is_closed, fleet.questions = True, 0
    for _ in range(10):
        with pytest.raises(Unauthorized):
            await fleet.client.invoke("x", target="a")
    assert fleet.questions == 1


async def test_a_call_that_is_refused_while_a_question_is_under_way_gets_the_answer_to_a_later_one(
    fleet: MixedFleet,
) -> None:
    fleet.proof_targets = ["a"]
    await fleet.client.invoke("x", target="a")
    fleet.workers_read_proofs, fleet.questions = False, 0
    fleet.is_answering.clear()
    first = asyncio.create_task(fleet.client.invoke("x", target="a"))
    while fleet.questions < 1:
        await asyncio.sleep(0)
    # The worker of an earlier release takes a call after the first question was asked.
    fleet.proof_targets = None
    later = asyncio.create_task(fleet.client.invoke("x", target="a"))
    while len(fleet.authorizations) < 3:
        await asyncio.sleep(0)
    fleet.is_answering.set()
    with pytest.raises(Unauthorized):
        await first
    await later
    assert fleet.authorizations == ["proof", "proof", "proof", "token"]
    assert fleet.questions == 2
