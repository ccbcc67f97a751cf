"""A call of 40 minutes and an outage of twenty, once in ``make soak``; QUINTAIN_TEST_SOAK_MINUTES shrinks both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from faults.long_call import LongCall, outlive, short_consumer_timeout
from quintain.settings import environment
from support.command_line import command_line
from support.limited_run import (
    SIXTY,
    assert_outlived,
    breaking_down,
    limited_provider,
    run_limited,
    write_limited_evaluation,
    write_targets,
)
from support.process_fleet import ProcessFleet
from support.servers.rabbitmq_admin import BrokerAdmin

MINUTES = float(environment().get("QUINTAIN_TEST_SOAK_MINUTES") or 30)

#: A call of 40 minutes, by the broker's own consumer timeout of 30, whose worker and broker die on the way.
LONG_CALL = LongCall(max(10, 60 * MINUTES), 80 * MINUTES, 50 * MINUTES, 70 * MINUTES)

#: How long the provider is down, in seconds, and how long a run waits for it.
DOWN_SECONDS, GIVE_UP_AFTER = 40 * MINUTES, "40m"

CASES = 200

pytestmark = [pytest.mark.very_long, pytest.mark.timeout(160 * MINUTES + 900)]


async def test_a_call_of_40_minutes_is_taken_over_charged_and_answered_once(
    stopped_fleet: ProcessFleet, broker_admin: BrokerAdmin
) -> None:
    with short_consumer_timeout(stopped_fleet, broker_admin, LONG_CALL):
        await outlive(stopped_fleet, broker_admin, LONG_CALL)


async def test_an_outage_of_twenty_minutes_is_outlived(tmp_path: Path) -> None:
    with command_line(tmp_path) as shell:
        async with limited_provider(replace(SIXTY, per_minute=600, burst=10)) as (provider, url):
            write_targets(shell.folder, url, "small")
            write_limited_evaluation(shell.folder, cases=CASES)
            async with breaking_down(provider, after=10, down=DOWN_SECONDS):
                figures = await run_limited(shell, provider, "--give-up-after", GIVE_UP_AFTER)
    assert_outlived(figures, CASES, failures=1)
