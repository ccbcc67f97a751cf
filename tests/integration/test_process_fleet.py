"""Several real processes behind one real broker: exact budgets, and nothing lost when one is killed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import quintain
from support.process_fleet import ProcessFleet, process_fleet
from support.quick import PROCESS_LEASE_SECONDS, lease_variable
from support.raw_client import RawAmqpClient

CONFIG = """
targets:
  slow: {provider: mock, response: "done", delay_ms: 300, max_concurrency: 8}
"""


@pytest.fixture
def fleet(broker_url: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG, targets=["slow"]) as fleet:
        fleet.extra_env |= lease_variable()
        fleet.start_service("metadata")
        yield fleet


async def test_of_two_hundred_at_once_exactly_fifty_are_granted(fleet: ProcessFleet) -> None:
    for _ in range(2):
        fleet.start_service("worker")
    session = fleet.open_session("slow", 50)
    async with quintain.connect(fleet.broker_url, session.token) as target:
        answers = await asyncio.gather(*(target.invoke(f"q{n}") for n in range(200)), return_exceptions=True)
        info = await target.get_info()
    assert Counter(type(answer) for answer in answers) == {quintain.Result: 50, quintain.BudgetExhausted: 150}
    assert sorted(answer.call_count for answer in answers if isinstance(answer, quintain.Result)) == list(range(1, 51))
    assert (info.call_count, info.max_calls) == (50, 50)


def test_a_worker_killed_under_load_loses_no_call(fleet: ProcessFleet) -> None:
    doomed, _ = fleet.start_service("worker"), fleet.start_service("worker")
    session = fleet.open_session("slow", 200)
    stranger = RawAmqpClient(fleet.broker_url, session.token)
    asked = [stranger.publish({"question": f"q{n}"}, key="slow", seconds=90) for n in range(40)]
    stranger.wait(asked[:4])
    doomed.kill()
    killed = time.monotonic()
    stranger.wait(asked, seconds=60)
    took = time.monotonic() - killed
    assert all(stranger.replies[one][0][0] == "result" for one in asked)
    assert took < PROCESS_LEASE_SECONDS + 10, f"the dead worker's calls came after {took:.0f} s"
    taken_over = [one for one in asked if stranger.replies[one][0][1]["attempts"] == 2]
    assert taken_over, "the killed worker held calls, and somebody took them over"
    info = fleet.info(session.token)
    assert (info["callCount"], info["committed"], info["running"]) == (40, 40, 0)
    stranger.close()


def test_a_worker_stopped_under_load_finishes_what_it_holds(fleet: ProcessFleet) -> None:
    leaving, _ = fleet.start_service("worker"), fleet.start_service("worker")
    session = fleet.open_session("slow", 200)
    stranger = RawAmqpClient(fleet.broker_url, session.token)
    asked = [stranger.publish({"question": f"q{n}"}, key="slow", seconds=60) for n in range(40)]
    stranger.wait(asked[:4])
    assert leaving.stop() == 0
    stranger.wait(asked, seconds=20)
    # What it had not begun it gave back, and another began it. The fault tests count that nothing was asked twice.
    assert {stranger.replies[one][0][0] for one in asked} == {"result"}
    assert fleet.info(session.token)["callCount"] == 40
    stranger.close()
