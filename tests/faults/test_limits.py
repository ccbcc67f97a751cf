"""The scenes of a limited key at their full length, over real sockets: ``make limits`` prints their figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import CommandLine, command_line
from support.limited_provider import ProviderSettings
from support.limited_run import ANSWER, LimitFigures, limited_provider, run_limited, write_limited_evaluation

pytestmark = [pytest.mark.very_long, pytest.mark.timeout(900)]

CASES = 100

SIXTY = ProviderSettings(kind="bucket", per_minute=60, answer=ANSWER)

#: The provider's settings, and the least part of the limit and the most answers 429 after the first minute.
SCENES = {
    "bucket": (SIXTY, 0.9, 0.03),
    "draining bucket": (replace(SIXTY, kind="draining bucket"), 0.9, 0.03),
    "Retry-After: 2": (replace(SIXTY, retry_after="2"), 0.9, 0.03),
    "headers": (replace(SIXTY, headers=True), 0.9, 0.01),
    "sliding window": (replace(SIXTY, kind="sliding window"), 0.9, 0.03),
    "fixed window": (replace(SIXTY, kind="fixed window"), 0.9, 0.03),
}

#: How long the provider is down, and when that begins, in seconds.
DOWN_SECONDS, DOWN_AFTER = 120, 10

Record = Callable[[str, LimitFigures], None]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    """A shell in an empty folder."""
    with command_line(tmp_path) as shell:
        yield shell


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Adds the figures of a scene to the summary of the tests."""
    summary = request.config.pluginmanager.getplugin("quintain-summary")
    return lambda name, figures: summary.add("limits", f"{name}: {figures}")


def assert_all_answered(figures: LimitFigures, rows: int) -> None:
    assert (figures.rows, figures.error_rows) == (rows, {}), f"{figures}\n{figures.result}"


@pytest.mark.parametrize("name", SCENES)
async def test_every_row_has_its_answer_and_the_limit_is_used(shell: CommandLine, name: str, record: Record) -> None:
    settings, least_use, most_refused = SCENES[name]
    async with limited_provider(settings) as (provider, url):
        write_limited_evaluation(shell.folder, url, cases=CASES)
        figures = await run_limited(shell, provider)
    record(name, figures)
    assert_all_answered(figures, CASES)
    later = figures.answered_later
    assert later[429] <= most_refused * later.total()
    assert later[200] >= least_use * settings.per_minute / 60 * (figures.provider_seconds - 60)


async def test_two_targets_share_the_limit_of_their_key(shell: CommandLine, record: Record) -> None:
    async with limited_provider(SIXTY) as (provider, url):
        write_limited_evaluation(shell.folder, url, cases=CASES // 2, targets=("small", "large"))
        figures = await run_limited(shell, provider)
    record("two targets", figures)
    assert_all_answered(figures, CASES)


async def test_an_outage_of_two_minutes_is_outlived(shell: CommandLine, record: Record) -> None:
    async with limited_provider(replace(SIXTY, per_minute=600, burst=10)) as (provider, url):
        write_limited_evaluation(shell.folder, url, cases=2 * CASES)

        async def break_down() -> None:
            await asyncio.sleep(DOWN_AFTER)
            provider.settings = replace(provider.settings, down=True)
            await asyncio.sleep(DOWN_SECONDS)
            provider.settings = replace(provider.settings, down=False)

        breaking = asyncio.get_running_loop().create_task(break_down())
        figures = await run_limited(shell, provider)
        await breaking
    record("down for two minutes", figures)
    assert_all_answered(figures, 2 * CASES)
