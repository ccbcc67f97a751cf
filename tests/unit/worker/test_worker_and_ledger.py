"""Whole workers, a real metadata service and a model's real wire: what cancelling and pausing come to in the books."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from quintain.contracts.ledger import TargetCard
from quintain.errors import Cancelled, TimedOut
from quintain.routes import DEADLINE_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.timings import Timings
from quintain.topology import target_queue
from quintain_worker.handler import Served
from quintain_worker.worker import Worker
from support.metadata_alone import ADMIN_TOKEN, MetadataAlone, metadata_alone
from support.model_server import ModelServer, Script, model_server
from support.model_wires import CHAT
from support.quick import timings

Answered = dict[str, object]

#: A heartbeat comes every 0.2 s.
FAST = timings(heartbeat_seconds=0.2)


@dataclass
class Floor:
    """A metadata service, a model behind HTTP, and as many workers of target ``it`` as a test starts."""

    metadata: MetadataAlone
    server: ModelServer
    token: str
    stack: contextlib.AsyncExitStack
    timings: Timings
    asking: list[asyncio.Task[Answered]] = field(default_factory=list)

    async def worker(self, *, at_once: int = 4) -> None:
        bus = self.metadata.memory.connect()
        self.stack.push_async_callback(bus.close)
        served = Served(name="it", provider=CHAT.provider(self.server.url), most_tries=3)
        worker = Worker(
            bus,
            {"it": served},
            [TargetCard(name="it", provider="openai", max_concurrency=at_once)],
            timings=self.timings,
        )
        await worker.start()
        self.stack.push_async_callback(worker.stop, 0)

    def ask(self, request_id: str, **headers: int) -> asyncio.Task[Answered]:
        said = {TOKEN_HEADER: self.token, REQUEST_ID_HEADER: request_id, **headers}
        asking = self.metadata.invoke(self.token, {"question": request_id}, "it", said)
        task = asyncio.get_running_loop().create_task(asking)
        self.asking.append(task)
        return task

    async def info(self) -> Answered:
        return await self.metadata.operate("info", self.token)

    async def asked(self, times: int) -> None:
        """Wait until the model has been asked so often."""
        async with asyncio.timeout(10):
            while len(self.server.asked) < times:
                await asyncio.sleep(0.01)

    async def gone(self) -> None:
        """Wait until the model's server has seen its client go."""
        async with asyncio.timeout(5):
            await self.server.disconnected.wait()

    async def counts(self, **wanted: int) -> None:
        """Wait until the books say so."""
        async with asyncio.timeout(5):
            while wanted != {name: value for name, value in (await self.info()).items() if name in wanted}:
                await asyncio.sleep(0.02)

    @property
    def consumers(self) -> int:
        return len(self.metadata.memory.queue(target_queue("it").name).takers)


@pytest.fixture
async def floor(request: pytest.FixtureRequest) -> AsyncIterator[Floor]:
    async with metadata_alone() as metadata, model_server() as server, contextlib.AsyncExitStack() as stack:
        card = {"defaultTarget": "it", "maxCalls": 10}
        floor = Floor(metadata, server, "", stack, getattr(request, "param", FAST))
        await floor.worker()
        floor.token = str((await metadata.operate("open", ADMIN_TOKEN, card))["token"])
        yield floor
        for task in floor.asking:
            task.cancel()
        await asyncio.gather(*floor.asking, return_exceptions=True)


async def test_a_running_call_is_taken_back_down_to_its_http_request_and_is_in_doubt(floor: Floor) -> None:
    floor.server.reply(Script(stall=True))
    asking = floor.ask("r1")
    await floor.asked(1)
    assert await floor.metadata.operate("cancel", floor.token, {"requestIds": ["r1"]}) == {"cancelled": 1}
    await floor.gone()
    with pytest.raises(Cancelled) as fault:
        await asking
    assert fault.value.charged
    await floor.counts(callCount=1, running=0, inDoubt=1, refunded=0)
    with pytest.raises(Cancelled):  # the same question hears the same
        await floor.ask("r1")
    assert len(floor.server.asked) == 1


async def test_a_call_that_waits_for_a_slot_is_taken_back_for_nothing(floor: Floor) -> None:
    floor.server.reply(Script(stall=True))
    await floor.worker()  # it takes the fifth, and the fleet's limit is four
    for number in range(5):
        floor.ask(f"r{number}")
    await floor.asked(4)
    running = {str(asked.body["messages"]) for asked in floor.server.asked}
    (queued,) = (number for number in range(5) if not any(f"r{number}" in each for each in running))
    await floor.metadata.operate("cancel", floor.token, {"requestIds": [f"r{queued}"]})
    with pytest.raises(Cancelled) as fault:
        await floor.asking[queued]
    assert not fault.value.charged
    await floor.counts(callCount=4, running=4, inDoubt=0)


async def test_the_deadline_closes_the_http_request_and_the_call_is_in_doubt(floor: Floor) -> None:
    floor.server.reply(Script(stall=True))
    now = (await floor.info())["now"]
    assert isinstance(now, int)
    asking = floor.ask("r1", **{DEADLINE_HEADER: now + 700})
    await floor.gone()
    with pytest.raises(TimedOut):
        await asking
    await floor.counts(callCount=1, running=0, inDoubt=1)


async def test_a_throttled_target_is_left_alone_by_every_worker_until_its_pause_is_over(floor: Floor) -> None:
    await floor.worker()
    floor.server.reply(Script(status=429, headers={"retry-after-ms": "2500"}, body={}), Script(body=CHAT.answer("Yes")))
    loop = asyncio.get_running_loop()
    first = floor.ask("r1")
    await floor.asked(1)
    began = loop.time()
    async with asyncio.timeout(2):
        while floor.consumers:
            await asyncio.sleep(0.01)
    others = [floor.ask(f"r{number}") for number in range(2, 6)]
    await asyncio.sleep(1)
    assert len(floor.server.asked) == 1
    answers = await asyncio.gather(first, *others)
    assert 2.4 < loop.time() - began < 5
    assert [each["rawText"] for each in answers] == ["Yes"] * 5
    assert answers[0]["attempts"] == 2
    await floor.counts(callCount=5, running=0, refunded=0, inDoubt=0, committed=5)


@pytest.mark.parametrize("floor", [timings(heartbeat_seconds=0.2, held_call_seconds=1.0)], indirect=True)
async def test_a_call_whose_pause_is_too_long_to_hold_is_given_back_and_made_later_at_the_price_of_one(
    floor: Floor,
) -> None:
    floor.server.reply(Script(status=429, headers={"retry-after-ms": "2500"}, body={}), Script(body=CHAT.answer("Yes")))
    asking = floor.ask("r1")
    await floor.counts(callCount=0, running=0, refunded=1)
    answer = await asking
    assert (answer["rawText"], answer["callCount"], answer["attempts"]) == ("Yes", 1, 2)
    await floor.counts(callCount=1, running=0, refunded=0, committed=1)


async def test_duplicates_of_a_running_call_cost_one_and_ask_the_model_once(floor: Floor) -> None:
    floor.server.reply(Script(body=CHAT.answer("Yes")))
    answers = await asyncio.gather(*(floor.ask("r1") for _ in range(4)))
    assert [each["rawText"] for each in answers] == ["Yes"] * 4
    assert sorted(bool(each["replayed"]) for each in answers) == [False, True, True, True]
    assert len(floor.server.asked) == 1
    await floor.counts(callCount=1, running=0, committed=1)
