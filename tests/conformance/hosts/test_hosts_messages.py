"""The core of ``docs/protocol/hosts.md``, message by message."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from conformance.hosts.checked_host import CheckedHost
from conformance.hosts.raw_driver import VERSION, RawDriver
from support.waiting import block_until

pytestmark = pytest.mark.every_broker

#: A host keeps so many items that its driver has not processed.
MAX_KEPT_ITEMS = 10_000

#: A lost driver's lease is over within so many seconds, and a little more on a busy machine.
LOST_SECONDS, MARGIN_SECONDS = 10.0, 2.0

#: So many drivers have gone before their offer. Two slots that wait until each is lost take longer than this.
GONE_DRIVERS, GONE_SECONDS = 8, 15.0

#: The longest pause between two messages of a host, with the time that they take.
HEARTBEAT_SECONDS = 2.0 + 0.5

UNREADABLE = (
    b"",
    b"\xff\xfe",
    b"null",
    b"[1, 2]",
    b'{"number": "one"}',
    b'{"number": 1, "processed": 0, "items": {"type": "open"}}',
    b"[" * 10_000,
)


def is_gone(driver: RawDriver) -> bool:
    """Whether the lease's queue was deleted."""
    driver.publish_raw({"number": 1, "processed": 0})
    driver.wait(0.1)
    return driver.returned > 0


def test_the_first_item_is_the_offer_and_the_second_one_the_description(raw: RawDriver) -> None:
    assert raw.items[0]["type"] == "offered"
    assert raw.items[0]["hostId"]
    assert raw.items[1]["type"] == "result"
    assert raw.items[1]["to"] == 1
    descriptor = raw.items[1]["descriptor"]
    assert descriptor["tags"] == [["root"], ["user", "root"], ["tools", "root"]]
    assert [each["name"] for each in descriptor["controllables"]] == ["question", "voice of plain"]


def test_another_version_is_refused_by_a_fault_that_names_both(host: CheckedHost, broker_url: str) -> None:
    for _ in range(3):  # there are two slots
        with RawDriver(broker_url, host.name) as driver:
            fault = driver.open(version=999)["fault"]
            assert fault["code"] == "bad_request"
            assert fault["status"] == 400
            assert "999" in fault["error"]
            assert str(VERSION) in fault["error"]


def test_what_is_no_request_takes_no_slot(host: CheckedHost, broker_url: str) -> None:
    with RawDriver(broker_url, host.name) as sender:
        for body in UNREADABLE:
            sender.publish_raw(body, key=host.name)
        message = {"number": 1, "processed": 0, "items": [{"type": "open", "version": VERSION}]}
        sender.publish_raw(message, key=host.name, type="gossip")
        sender.publish_raw(message, key=host.name, reply_to=None)
        for number in range(GONE_DRIVERS):
            sender.publish_raw(message, key=host.name, reply_to="driver.gone", correlation_id=f"gone-{number}")
        with RawDriver(broker_url, host.name) as first, RawDriver(broker_url, host.name) as second:
            assert "descriptor" in first.open(seconds=GONE_SECONDS)
            assert "descriptor" in second.open(seconds=GONE_SECONDS)


def test_what_cannot_be_read_harms_its_lease_at_most(host: CheckedHost, broker_url: str) -> None:
    with RawDriver(broker_url, host.name) as driver:
        driver.open()
        for body in UNREADABLE:
            driver.publish_raw(body)
        driver.ask("dance")
        teardown = driver.ask("teardown")
        driver.wait_until(lambda: driver.results_of(teardown) or is_gone(driver), seconds=5)
    with RawDriver(broker_url, host.name) as first, RawDriver(broker_url, host.name) as second:
        assert "descriptor" in first.open()
        assert "descriptor" in second.open()


def test_messages_of_another_type_and_replies_that_nobody_waits_for_are_ignored(raw: RawDriver) -> None:
    run = raw.run(["ask", "a"])
    teardown = {"number": 4, "processed": 1, "items": [{"type": "teardown"}]}
    raw.publish_raw(teardown, type="gossip")
    ((number, _),) = raw.sent(1)
    raw.reply(to=4_711, value="for nobody")
    raw.reply(to=number, value="the first")
    raw.reply(to=number, value="too late")
    assert "failure" not in raw.result(run)
    raw.call("cancel", to=run)
    raw.call("cancel", to=4_711)
    assert raw.contents() == [["the first"]]


@pytest.mark.parametrize(
    "request_fields",
    [{"kind": "set_config", "values": {"loudness": "11"}}, {"kind": "query", "name": "weather", "params": {}}],
    ids=["unknown-slot", "unknown-query"],
)
def test_a_request_that_fails_has_a_failure_as_its_result(raw: RawDriver, request_fields: dict[str, Any]) -> None:
    failure = raw.result(raw.ask(**request_fields))["failure"]
    assert failure["type"]
    assert failure["message"]
    assert raw.call("query", name="count", params={})["value"] == "1"


def test_requests_are_carried_out_in_order_and_do_not_wait_for_the_end_of_a_run(raw: RawDriver) -> None:
    run = raw.run(["ask", "a"])
    raw.sent(1)
    counts = [raw.ask("query", name="count", params={}) for _ in range(5)]
    assert [raw.result(number)["value"] for number in counts] == ["1", "2", "3", "4", "5"]
    raw.call("set_config", values={"persona": "quiet"})
    assert raw.call("describe")["descriptor"]["controllables"][1]["name"] == "voice of quiet"
    assert raw.results_of(run) == []
    raw.reply(raw.sent(1)[0][0], "b")
    assert "failure" not in raw.result(run)
    raw.wait_until(lambda: raw.unprocessed == 0)


def test_the_result_of_a_cancel_comes_after_that_of_its_run(raw: RawDriver) -> None:
    run = raw.run(["emit", "begun"], ["ask", "never answered"])
    raw.sent(1)
    cancel = raw.ask("cancel", to=run)
    raw.result(cancel)
    results = [item["to"] for item in raw.items if item["type"] == "result"]
    assert results[-2:] == [run, cancel]
    assert "failure" in raw.result(run)


def test_a_run_ends_the_run_before(raw: RawDriver, tmp_path: Path) -> None:
    diary = str(tmp_path / "diary")
    first = raw.run(["emit", "first"], ["wait"], diary=diary)
    raw.wait_until(raw.contents)
    second = raw.run(["emit", "second"], diary=diary)
    assert "failure" not in raw.result(second)
    assert "failure" in raw.result(first)
    assert raw.contents() == ["first", "second"]
    assert (tmp_path / "diary").read_text() == "cancelled\n"


def test_an_event_of_a_class_that_the_driver_cannot_read_is_an_error_of_the_target(raw: RawDriver) -> None:
    raw.call("set_config", values={"script": json.dumps([["emit", "unseen"]])})
    result = raw.result(raw.ask("run", events=["ControllablePreCallEvent"]))
    assert "ObservableEvent" in result["failure"]["message"]
    assert raw.contents() == []


def test_the_failure_of_a_reply_comes_back_with_its_token(raw: RawDriver) -> None:
    run = raw.run(["ask", "a"])
    failure = {"type": "ValueError", "message": "not today", "token": "8c1f"}
    raw.ask("reply", to=raw.sent(1)[0][0], response={"failure": failure})
    returned = raw.result(run)["failure"]
    assert {key: returned[key] for key in failure} == failure


def test_a_teardown_waits_for_nothing_and_its_result_is_the_last_item(
    host: CheckedHost, broker_url: str, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    with RawDriver(broker_url, host.name) as driver:
        driver.open()
        run = driver.run(["emit", "begun"], ["wait"], diary=str(diary))
        driver.wait_until(driver.contents)
        driver.call("set_config", values={"persona": "stuck"})
        stuck = [driver.ask("reset"), driver.ask("query", name="count", params={})]
        teardown = driver.ask("teardown")
        assert "failure" not in driver.result(teardown, seconds=5)
        assert all("failure" in driver.result(number) for number in (run, *stuck))
        assert driver.items[-1]["to"] == teardown
        assert diary.read_text() == "cancelled\ntorn down\n"
        block_until(lambda: is_gone(driver), seconds=5)


def test_a_target_waits_for_a_driver_that_processes_nothing(raw: RawDriver) -> None:
    raw.processed_limit = len(raw.items) + 2
    run = raw.run(["count_to", MAX_KEPT_ITEMS + 2_000])
    raw.wait_until(lambda: len(raw.items) >= MAX_KEPT_ITEMS, seconds=30)
    raw.wait(0.5)
    assert len(raw.items) <= MAX_KEPT_ITEMS + raw.processed_limit + 100
    raw.processed_limit = None
    assert "failure" not in raw.result(run, seconds=30)
    assert raw.contents() == [*range(1, MAX_KEPT_ITEMS + 2_001)]


def test_a_driver_that_is_silent_is_lost_and_heard_of_the_host_all_the_time(
    host: CheckedHost, broker_url: str, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    with RawDriver(broker_url, host.name) as driver:
        driver.open()
        driver.result(driver.ask("describe"))
        driver.run(["wait"], diary=str(diary))
        driver.call("query", name="count", params={})
        driver.is_silent = True
        driver.wait_until(
            lambda: diary.exists() and diary.read_text() == "cancelled\ntorn down\n",
            seconds=LOST_SECONDS + MARGIN_SECONDS,
        )
        pauses = [after - before for before, after in zip(driver.heard_at, driver.heard_at[1:], strict=False)]
        assert len(pauses) > 3
        assert max(pauses) < HEARTBEAT_SECONDS
        block_until(lambda: is_gone(driver), seconds=5)


def test_a_host_that_is_stopped_takes_no_lease_and_lets_the_one_that_goes_on_end(
    start_host: Callable[[Path], AbstractContextManager[CheckedHost]], broker_url: str, tmp_path: Path
) -> None:
    with start_host(tmp_path) as host, RawDriver(broker_url, host.name) as waiting:
        with RawDriver(broker_url, host.name) as driver:
            driver.open()
            driver.call("describe")
            host.process.terminate()
            driver.wait(0.5)
            waiting.publish_raw(
                {"number": 1, "processed": 0, "items": [{"type": "open", "version": VERSION}]}, key=host.name
            )
            run = driver.run(["ask", "a"])
            driver.reply(driver.sent(1)[0][0], "b")
            assert "failure" not in driver.result(run)
        host.process.wait(10)
        waiting.wait(0.1)
        assert waiting.items == []
