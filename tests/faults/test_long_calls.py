"""A call of minutes outlives its worker and its broker; `test_soak_providers.py` has one of 40 minutes."""

from __future__ import annotations

import asyncio

import pytest

from faults.load import is_long
from faults.long_call import LongCall, outlive, short_consumer_timeout
from quintain.bus.rabbit_declarations import is_older
from quintain.contracts.invoke import InvokeRequest
from support.process_fleet import ProcessFleet, process_fleet
from support.recording_bus import recording_client
from support.servers.amqp_handshake import read_version
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest

#: A call of five of the broker's timeouts, which loses its worker and the broker on the way; and one of three, shrunk.
LONG_CALL = LongCall(60, 300, 150, 210) if is_long() else LongCall(4, 12, 6, 13.5)


@pytest.mark.timeout(900)
async def test_a_call_outlives_its_worker_and_the_broker_and_is_charged_and_answered_once(
    stopped_fleet: ProcessFleet, broker_admin: BrokerAdmin
) -> None:
    with short_consumer_timeout(stopped_fleet, broker_admin, LONG_CALL):
        await outlive(stopped_fleet, broker_admin, LONG_CALL)
    if is_older(read_version(stopped_fleet.broker_url), (3, 12)):
        output = "".join(process.read_output() for process in stopped_fleet.processes)
        assert "is started again" in output, "no message was delivered again"


WAITING_CONFIG = """
quotas:
  bots: {adaptive: false, concurrency: {start: 1, max: 1}}
targets:
  bot: {provider: python, callable: "bot:answer", quota: bots, env_from: [TEST_BOT_SECONDS]}
"""


@pytest.mark.long
async def test_a_call_that_waits_for_its_quota_keeps_its_place(
    breakable_broker: BrokerUnderTest, fast_queue_stats: None, broker_admin: BrokerAdmin
) -> None:
    form = LongCall(consumer_timeout=10, call=3, worker_dies=0, broker_dies=0)
    calls = 6
    with (
        process_fleet(breakable_broker.url, WAITING_CONFIG, targets=["bot"]) as fleet,
        short_consumer_timeout(fleet, broker_admin, form),
    ):
        await asyncio.to_thread(fleet.start_services, "metadata", "worker", "worker")
        session = await asyncio.to_thread(fleet.open_session, "bot", calls)
        async with recording_client(fleet.broker_url, session.token) as recording:
            ended = list[int]()

            async def call(number: int) -> None:
                await asyncio.sleep(number / 2)  # on a busy machine the one before has arrived by then
                request = InvokeRequest(question=f"{number}", target="bot")
                await recording.client.send(request, request_id=f"r{number}", deadline_seconds=120)
                ended.append(number)

            await asyncio.gather(*map(call, range(calls)))
            info = await recording.client.get_info()
    # The last one waited longer than the broker's timeout, and they were answered in the order in which they came.
    assert ended == list(range(calls))
    assert (info.call_count, info.committed) == (calls, calls)
