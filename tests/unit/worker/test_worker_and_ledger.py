"""Whole workers, a real metadata service and a model's real wire: what cancelling and pausing come to in the books."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from quintain.contracts.headers import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.ledger import TargetCard
from quintain.errors import Cancelled
from quintain.timings import Timings
from quintain.topology import target_queue
from quintain_worker.target import WorkerTarget
from quintain_worker.worker import Worker
from support.metadata_service import ADMIN_TOKEN, RunningMetadataService, run_metadata_service
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.model_wires import CHAT
from support.quick import timings
from support.raw_client import text_of

ResultBody = dict[str, object]

#: A heartbeat comes every 0.2 s.
FAST = timings(heartbeat_seconds=0.2)


@dataclass
class Deployment:
    """A metadata service, a model behind HTTP, and as many workers of target ``it`` as a test starts."""

    metadata: RunningMetadataService
    server: ModelServer
    token: str
    stack: contextlib.AsyncExitStack
    timings: Timings
    calls: list[asyncio.Task[ResultBody]] = field(default_factory=list)

    async def start_worker(self, *, max_concurrency: int = 4) -> None:
        bus = self.metadata.memory.connect()
        self.stack.push_async_callback(bus.close)
        served = WorkerTarget(name="it", provider=CHAT.provider(self.server.url), max_tries=3)
        worker = Worker(
            bus,
            {"it": served},
            [TargetCard(name="it", provider="openai", max_concurrency=max_concurrency)],
            timings=self.timings,
        )
        await worker.start()
        self.stack.push_async_callback(worker.stop, 0)

    def start_call(self, request_id: str, **headers: int) -> asyncio.Task[ResultBody]:
        said = {TOKEN_HEADER: self.token, REQUEST_ID_HEADER: request_id, **headers}
        asking = self.metadata.invoke(self.token, {"question": request_id}, "it", said)
        task = asyncio.get_running_loop().create_task(asking)
        self.calls.append(task)
        return task

    async def info(self) -> ResultBody:
        return await self.metadata.call_operation("info", self.token)

    async def wait_for_requests(self, times: int) -> None:
        """Wait until the model has been asked so often."""
        async with asyncio.timeout(10):
            while len(self.server.requests) < times:
                await asyncio.sleep(0.01)

    async def wait_for_disconnect(self) -> None:
        """Wait until the model's server has seen its client go."""
        async with asyncio.timeout(5):
            await self.server.disconnected.wait()

    async def wait_for_counters(self, **expected: int) -> None:
        """Wait until the books say so."""
        async with asyncio.timeout(5):
            while expected != {name: value for name, value in (await self.info()).items() if name in expected}:
                await asyncio.sleep(0.02)

    @property
    def consumer_count(self) -> int:
        return len(self.metadata.memory.queue(target_queue("it").name).consumers)


@pytest.fixture
async def deployment(request: pytest.FixtureRequest) -> AsyncIterator[Deployment]:
    async with run_metadata_service() as metadata, model_server() as server, contextlib.AsyncExitStack() as stack:
        card = {"defaultTarget": "it", "maxCalls": 10}
        floor = Deployment(metadata, server, "", stack, getattr(request, "param", FAST))
        await floor.start_worker()
        floor.token = str((await metadata.call_operation("open", ADMIN_TOKEN, card))["token"])
        yield floor
        for task in floor.calls:
            task.cancel()
        await asyncio.gather(*floor.calls, return_exceptions=True)


async def test_a_running_call_is_taken_back_down_to_its_http_request_and_is_in_doubt(deployment: Deployment) -> None:
    deployment.server.set_responses(ScriptedResponse(stall=True))
    asking = deployment.start_call("r1")
    await deployment.wait_for_requests(1)
    assert await deployment.metadata.call_operation("cancel", deployment.token, {"requestIds": ["r1"]}) == {
        "cancelled": 1
    }
    await deployment.wait_for_disconnect()
    with pytest.raises(Cancelled) as fault:
        await asking
    assert fault.value.charged
    await deployment.wait_for_counters(callCount=1, running=0, inDoubt=1, refunded=0)
    with pytest.raises(Cancelled):  # the same question hears the same
        await deployment.start_call("r1")
    assert len(deployment.server.requests) == 1


async def test_a_call_that_waits_for_a_slot_is_taken_back_for_nothing(deployment: Deployment) -> None:
    deployment.server.set_responses(ScriptedResponse(stall=True))
    await deployment.start_worker()  # it takes the fifth, and the fleet's limit is four
    for number in range(5):
        deployment.start_call(f"r{number}")
    await deployment.wait_for_requests(4)
    running = {str(asked.body["messages"]) for asked in deployment.server.requests}
    (queued,) = (number for number in range(5) if not any(f"r{number}" in each for each in running))
    await deployment.metadata.call_operation("cancel", deployment.token, {"requestIds": [f"r{queued}"]})
    with pytest.raises(Cancelled) as fault:
        await deployment.calls[queued]
    assert not fault.value.charged
    await deployment.wait_for_counters(callCount=4, running=4, inDoubt=0)


async def test_a_throttled_target_is_left_alone_by_every_worker_until_its_pause_is_over(deployment: Deployment) -> None:
    await deployment.start_worker()
    deployment.server.set_responses(
        ScriptedResponse(status=429, headers={"retry-after-ms": "2500"}, body={}),
        ScriptedResponse(body=CHAT.answer("Yes")),
    )
    loop = asyncio.get_running_loop()
    first = deployment.start_call("r1")
    await deployment.wait_for_requests(1)
    began = loop.time()
    async with asyncio.timeout(2):
        while deployment.consumer_count:
            await asyncio.sleep(0.01)
    others = [deployment.start_call(f"r{number}") for number in range(2, 6)]
    await asyncio.sleep(1)
    assert len(deployment.server.requests) == 1
    answers = await asyncio.gather(first, *others)
    assert 2.4 < loop.time() - began < 5
    assert [text_of(each) for each in answers] == ["Yes"] * 5
    assert answers[0]["attempts"] == 2
    await deployment.wait_for_counters(callCount=5, running=0, refunded=0, inDoubt=0, committed=5)


@pytest.mark.parametrize("deployment", [timings(heartbeat_seconds=0.2, held_call_seconds=1.0)], indirect=True)
async def test_a_call_whose_pause_is_too_long_to_hold_is_given_back_and_made_later_at_the_price_of_one(
    deployment: Deployment,
) -> None:
    deployment.server.set_responses(
        ScriptedResponse(status=429, headers={"retry-after-ms": "2500"}, body={}),
        ScriptedResponse(body=CHAT.answer("Yes")),
    )
    asking = deployment.start_call("r1")
    await deployment.wait_for_counters(callCount=0, running=0, refunded=1)
    answer = await asking
    assert (text_of(answer), answer["callCount"], answer["attempts"]) == ("Yes", 1, 2)
    await deployment.wait_for_counters(callCount=1, running=0, refunded=0, committed=1)
