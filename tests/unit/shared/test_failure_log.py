"""A failure that lasts takes a line when it begins, one a minute, and one when it ends."""

from __future__ import annotations

import logging

import pytest

from quintain.bus import failure_log
from quintain.bus.failure_log import FailureLog
from quintain.bus.memory import MemoryBroker
from quintain.errors import BrokerRefused, BrokerUnavailable

log = logging.getLogger("quintain.test")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(failure_log, "time", clock)
    return clock


def test_an_hour_of_failures_takes_a_line_a_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(log, "It fails", "It works again")
    failures.worked()
    for _ in range(7200):
        failures.failed(BrokerRefused("no"))
        clock.now += 0.5
    failures.worked()
    failures.worked()
    lines = caplog.messages
    assert (lines[0], lines[1], lines[-1]) == (
        "It fails: no",
        "It fails, for 60 s: no",
        "It works again after 3600.0 s",
    )
    assert len(lines) == 61


def test_an_error_of_another_kind_is_told_at_once_and_no_more_often(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    failures = FailureLog(log, "It fails", "It works again")
    for _ in range(10):
        failures.failed(BrokerUnavailable("lost"))
        failures.failed(BrokerRefused("no"))
        clock.now += 1
    assert caplog.messages == ["It fails: lost", "It fails: no"]


def test_it_ends_when_all_work_and_those_that_are_given_up_end_nothing(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    failures = FailureLog(log, "It fails", "It works again")
    for subject in ("a", "b", "c"):
        failures.failed(BrokerRefused("no"), subject)
    failures.worked("a")
    failures.forget("b")
    assert len(caplog.messages) == 1
    clock.now += 2
    failures.worked("c")
    assert caplog.messages[1:] == ["It works again after 2.0 s"]
    failures.failed(BrokerRefused("no"))
    failures.forget(None)
    failures.failed(BrokerRefused("no"))
    assert len(caplog.messages) == 4


async def test_nothing_is_logged_over_a_bus_that_is_not_connected(caplog: pytest.LogCaptureFixture) -> None:
    bus = MemoryBroker().connect()
    failures = FailureLog(log, "It fails", "It works again", bus)
    await bus.close()
    failures.failed(BrokerUnavailable("lost"))
    failures.worked()
    assert not caplog.messages
