"""Turns of a conversation that one worker holds: they go to that worker, and to no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from quintain.client.client import Client, connect
from quintain.contracts.agents import Continuation, Turn
from quintain.contracts.invoke import ChatMessage, InvokeRequest, Result
from quintain.contracts.ledger import TargetCard
from quintain.errors import BadRequest, ConversationLost
from quintain.topology import conversation_topology
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderFailure
from quintain_worker.target import WorkerTarget
from quintain_worker.worker import Worker
from support.memory_fleet import memory_fleet
from support.metadata_service import Metadata, run_metadata_service


class HoldingProvider:
    """Keeps what each conversation said, and answers with all of it; another worker's conversations it does not know.

    A conversation that has begun needs a slot beside those of calls that begin: ``blocked`` holds these.
    """

    def __init__(self) -> None:
        self.held: dict[str, list[str]] = {}
        self.blocked = asyncio.Event()
        self.blocked.set()

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        turn, said = request.turn, str((request.messages or [])[-1].content)
        assert turn is not None
        if turn.number == 1:
            await self.blocked.wait()
            self.held[turn.conversation_id] = []
        if turn.conversation_id not in self.held:
            raise ProviderFailure(ConversationLost(), Billing.UNBILLED)
        self.held[turn.conversation_id].append(said)
        return ProviderAnswer(text=" ".join(self.held[turn.conversation_id]), holds_conversation=True)

    async def close(self) -> None:
        """Forget all."""
        self.held.clear()


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    async with run_metadata_service() as alone:
        yield alone


@asynccontextmanager
async def holding_worker(metadata: Metadata, slots: int = 4) -> AsyncIterator[HoldingProvider]:
    provider, bus = HoldingProvider(), metadata.memory.connect()
    card = TargetCard(name="a", provider="mock", max_concurrency=2 * slots, worker_concurrency=slots)
    worker = Worker(bus, {"a": WorkerTarget(name="a", provider=provider)}, [card])
    await worker.start()
    try:
        yield provider
    finally:
        await worker.stop(1)
        await bus.close()


async def say(
    client: Client, text: str, name: str = "c", number: int = 1, continuation: Continuation | None = None, at: str = "a"
) -> Result:
    return await client.send(
        InvokeRequest(
            messages=[ChatMessage(role="user", content=text)],
            target=at,
            turn=Turn(conversation_id=name, number=number, continuation=continuation),
        ),
        deadline_seconds=20,
    )


async def test_turns_come_to_the_worker_that_holds_their_conversation(metadata: Metadata) -> None:
    session = await metadata.driver.open_session(default_target="a", max_calls=100)
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(holding_worker(metadata)) for _ in range(3)]
        client = await stack.enter_async_context(connect("memory://", session.token, memory=metadata.memory))

        async def converse(name: str) -> str:
            last = await say(client, "one", name)
            for number, word in enumerate(("two", "three"), start=2):
                last = await say(client, word, name, number, last.continuation)
            return last.raw_text

        answers = await asyncio.gather(*(converse(f"c{number}") for number in range(9)))
        assert answers == ["one two three"] * 9
        assert [len(provider.held) for provider in providers] == [3, 3, 3]


async def test_a_conversation_ends_with_its_worker_uncharged_and_any_worker_says_so(
    metadata: Metadata,
) -> None:
    session = await metadata.driver.open_session(default_target="a", max_calls=100)
    async with connect("memory://", session.token, memory=metadata.memory) as client:
        async with holding_worker(metadata):
            first = await say(client, "one")
        assert first.continuation is not None
        assert first.continuation.route is not None
        # The worker was drained: nothing takes its turns any more.
        metadata.memory.delete_queue(
            conversation_topology("a", first.continuation.route.partition("/")[2]).queues[0].name
        )
        async with holding_worker(metadata):
            with pytest.raises(ConversationLost) as lost:
                await say(client, "two", number=2, continuation=first.continuation)
        assert lost.value.charged is False
        assert (await client.get_info()).call_count == 1


async def test_what_has_begun_is_not_kept_by_what_begins(metadata: Metadata) -> None:
    session = await metadata.driver.open_session(default_target="a", max_calls=100)
    async with (
        holding_worker(metadata, slots=1) as provider,
        connect("memory://", session.token, memory=metadata.memory) as client,
    ):
        first = await say(client, "one")
        provider.blocked.clear()
        beginning = asyncio.ensure_future(say(client, "other", "d"))
        await asyncio.sleep(0.1)
        assert (await say(client, "two", number=2, continuation=first.continuation)).raw_text == "one two"
        provider.blocked.set()
        assert (await beginning).raw_text == "other"


@pytest.mark.parametrize("route", ["quintain.ledger", "a", "b/" + "0" * 32, "a/" + "0" * 31, "a/../settle", ""])
async def test_a_continuation_names_no_other_queue(metadata: Metadata, route: str) -> None:
    session = await metadata.driver.open_session(default_target="a", max_calls=9)
    async with connect("memory://", session.token, memory=metadata.memory) as client:
        with pytest.raises(BadRequest, match=r"turn\.continuation\.route"):
            await say(client, "two", number=2, continuation=Continuation(route=route))


PROGRAM = """
import json, sys
said = []
for line in sys.stdin:
    said.append(json.loads(line)["prompt"])
    print(json.dumps({"type": "answer", "text": " ".join(said)}), flush=True)
"""


async def test_a_conversation_that_is_over_gives_its_process_free_at_once(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    config = "targets: {a: {provider: command, protocol: jsonl, command: [python, agent.py], max_concurrency: 1}}"
    async with memory_fleet(tmp_path, config) as fleet, fleet.client("a") as client, fleet.client("a") as other:
        first = await say(client, "one")
        # A conversation is its session's.
        await other.end_conversation("c")
        second = await say(client, "two", number=2, continuation=first.continuation)
        await client.end_conversation("c")
        # The one process would be held for 30 s.
        assert (await asyncio.wait_for(say(client, "one", "d"), 10)).raw_text == "one"
        with pytest.raises(ConversationLost) as lost:
            await say(client, "three", number=3, continuation=second.continuation)
        assert lost.value.charged is False


async def test_over_http_the_gateway_sends_a_turn_where_its_conversation_is(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    config = "targets: {a: {provider: command, protocol: jsonl, command: [python, agent.py]}}"
    async with memory_fleet(tmp_path, config) as fleet:
        session = await fleet.open_session("a")
        async with connect(fleet.gateway_url, session.token) as client:
            first = await say(client, "one")
            assert first.continuation is not None
            assert first.continuation.route is not None
            assert (await say(client, "two", number=2, continuation=first.continuation)).raw_text == "one two"
            with pytest.raises(BadRequest, match=r"turn\.continuation\.route"):
                await say(client, "three", number=3, continuation=Continuation(route="quintain.ledger"))
