"""The timings: their defaults are the promised figures, they agree with each other, and tests may scale them."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain.settings import TEST_LEASE_VARIABLE, read_settings
from quintain.timings import DEFAULT_TIMINGS, Timings

PAGE = Path(__file__).parents[3] / "docs" / "protocol" / "timings.md"

#: In the order of the table.
PROMISED = [
    DEFAULT_TIMINGS.lease_seconds,
    DEFAULT_TIMINGS.heartbeat_seconds,
    DEFAULT_TIMINGS.register_timeout_seconds,
    DEFAULT_TIMINGS.admit_repeat_seconds,
    DEFAULT_TIMINGS.held_admit_seconds,
    DEFAULT_TIMINGS.ledger_silence_seconds,
    DEFAULT_TIMINGS.held_call_seconds,
    DEFAULT_TIMINGS.shared_pause_seconds,
    DEFAULT_TIMINGS.unknown_target_seconds,
    DEFAULT_TIMINGS.answered_settle_seconds,
    DEFAULT_TIMINGS.sweep_seconds,
    DEFAULT_TIMINGS.gap_seconds,
    DEFAULT_TIMINGS.gap_seconds,
    DEFAULT_TIMINGS.host_heartbeat_seconds,
    DEFAULT_TIMINGS.host_lost_seconds,
]


def test_the_defaults_are_the_figures_of_the_protocol() -> None:
    assert [float(row) for row in re.findall(r"^\| .* \| ([0-9.]+) \|$", PAGE.read_text(), re.MULTILINE)] == PROMISED


def test_scaled_timings_keep_their_proportions() -> None:
    scaled = dataclasses.asdict(DEFAULT_TIMINGS.scaled(0.2))
    assert scaled == {
        name: pytest.approx(0.2 * seconds) for name, seconds in dataclasses.asdict(DEFAULT_TIMINGS).items()
    }
    for factor in (1e-3, 1 / 3, 1 / 7, 1 / 30, 0.7):
        DEFAULT_TIMINGS.scaled(factor)


@pytest.mark.parametrize(
    "seconds",
    [
        {"lease_seconds": 14.9},
        {"heartbeat_seconds": 3.1},
        {"ledger_silence_seconds": 3.0},
        {"host_lost_seconds": 4.0},
        {"sweep_seconds": 0.0},
        {"sweep_seconds": -1.0},
        {"sweep_seconds": math.nan},
    ],
)
def test_timings_that_contradict_each_other_are_refused(seconds: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Timings(**seconds)


def test_nothing_in_the_environment_means_the_promised_figures(caplog: pytest.LogCaptureFixture) -> None:
    assert read_settings({"HOME": "/h"}).timings == DEFAULT_TIMINGS
    assert caplog.records == []


def test_a_test_may_shorten_the_lease_and_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    timings = read_settings({"HOME": "/h", TEST_LEASE_VARIABLE: "3"}).timings
    assert (timings.lease_seconds, timings.heartbeat_seconds) == (pytest.approx(3), pytest.approx(0.6))
    assert timings.host_lost_seconds == pytest.approx(1.8)
    # A service that is started again takes as long to start as ever.
    assert timings.ledger_silence_seconds == DEFAULT_TIMINGS.ledger_silence_seconds
    assert [(record.levelno, TEST_LEASE_VARIABLE in record.message) for record in caplog.records] == [
        (logging.WARNING, True)
    ]


@pytest.mark.parametrize("text", ["0.9", "15.1", "-3", "nan", "inf", "three", "3 s"])
def test_a_lease_outside_of_its_bounds_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="for tests of Quintain itself"):
        read_settings({"HOME": "/h", TEST_LEASE_VARIABLE: text})
