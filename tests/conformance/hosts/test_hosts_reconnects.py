"""What reconnects add in ``docs/protocol/hosts.md``: whatever is lost or repeated on the way, nothing is done twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from conformance.hosts.checked_host import TAGS, BrokerProxy, CheckedHost, broker_proxy
from conformance.hosts.raw_driver import RawDriver
from quintain.remote.factory import RemoteFactory
from quintain.target.type_registry import QUINTAIN_TYPES
from support.target_placements import Controller

pytestmark = pytest.mark.every_broker

ASKED = 60


def test_a_message_of_the_host_that_is_lost_is_published_again(raw: RawDriver) -> None:
    run = raw.run(["count_to", 300], ["ask", "a"])
    raw.dropped = 2
    raw.reply(raw.sent(1)[0][0], "b")
    assert "failure" not in raw.result(run)
    assert raw.contents() == [*range(1, 301), ["b"]]


def test_the_last_message_of_the_host_that_is_lost_is_found_by_its_next_heartbeat(raw: RawDriver) -> None:
    raw.call("query", name="count", params={})
    raw.dropped = 1
    assert raw.call("query", name="count", params={})["value"] == "2"


def test_an_item_of_the_driver_that_is_lost_is_asked_for_and_carried_out_in_its_turn(raw: RawDriver) -> None:
    first, second = (raw.skip("query", name="count", params={}) for _ in range(2))
    third = raw.ask("query", name="count", params={})
    assert [raw.result(number)["value"] for number in (first, second, third)] == ["1", "2", "3"]
    assert raw.asked_again


def test_an_item_that_comes_again_is_not_carried_out_again(raw: RawDriver) -> None:
    run = raw.run(["ask", "a"], ["ask", "b"])
    count = raw.ask("query", name="count", params={})
    body = {
        "number": 1,
        "processed": 0,
        "items": [
            {"type": "open", "version": 4},
            {"type": "teardown"},
            {"type": "teardown"},
            {"type": "query", "name": "count", "params": {}},
        ],
    }
    (number, _), *_ = raw.sent(1)
    for _ in range(2):
        raw.publish_raw(body)
        raw.publish_again()
    raw.reply(number, "first")
    raw.reply(raw.sent(2)[1][0], "second")
    assert "failure" not in raw.result(run)
    assert raw.result(count)["value"] == "1"
    assert raw.call("query", name="count", params={})["value"] == "2"
    assert len(raw.results_of(count)) == 1
    assert raw.contents() == [["first"], ["second"]]


def test_all_that_was_not_processed_is_published_when_it_is_asked_for(raw: RawDriver) -> None:
    raw.processed_limit = len(raw.items)
    raw.call("query", name="count", params={})
    kept, before = raw.processed_limit, len(raw.items)
    del raw.items[kept:]
    raw.publish_again()
    raw.wait_until(lambda: len(raw.items) >= before)
    raw.processed_limit = None


def test_a_driver_that_reconnects_under_another_key_goes_on(raw: RawDriver) -> None:
    run = raw.run(["ask", "a"], ["count_to", 200], ["ask", "b"])
    (number, _), *_ = raw.sent(1)
    raw.close()
    raw.connect()
    raw.reply(number, "first")
    raw.publish_again()
    raw.reply(raw.sent(2)[1][0], "second")
    assert "failure" not in raw.result(run)
    assert raw.contents() == [["first"], *range(1, 201), ["second"]]


async def drive_with_cuts(remote: RemoteFactory, proxy: BrokerProxy) -> None:
    """A run in which the connection is cut while events are on their way, and while one waits."""

    async def answer(event: Any) -> Any:
        number = int(event.request)
        if number % 20 == 7:
            proxy.cut()
        if number % 20 == 17:
            proxy.cut()
            await asyncio.sleep(0.5)
        return one.injection(event, f"{number}!")

    script = [step for number in range(ASKED) for step in (["ask", str(number)], ["count_to", 20])]
    target, one = remote.create(), Controller(QUINTAIN_TYPES, answer)
    target.set_config("script", json.dumps(script))
    async with asyncio.timeout(60):
        await one.drive(target)
    parts = [[str(number), [f"{number}!"], *range(1, 21)] for number in range(ASKED)]
    assert one.contents() == [each for part in parts for each in part]
    assert target.query("runs", since="lease") == "1"
    await target.teardown()


@pytest.mark.broker
async def test_a_run_goes_on_when_the_connection_of_its_host_is_cut(host: CheckedHost, remote: RemoteFactory) -> None:
    await drive_with_cuts(remote, host.proxy)


async def test_a_run_goes_on_when_the_connection_of_its_driver_is_cut(host: CheckedHost, broker_url: str) -> None:
    with (
        broker_proxy(broker_url) as proxy,
        RemoteFactory(host.name, url=proxy.url, tags=TAGS, prefetch=0) as remote,
    ):
        await drive_with_cuts(remote, proxy)


async def test_free_slots_wait_again_after_a_cut(host: CheckedHost, remote: RemoteFactory) -> None:
    for _ in range(2):
        host.proxy.cut()
        await asyncio.sleep(0.3)
    targets = [await asyncio.to_thread(remote.create) for _ in range(2)]
    assert [target.query("count") for target in targets] == ["1", "1"]
    for target in targets:
        await target.teardown()
