"""``quintain run`` over a provider that limits the key and does not say so. All its forms: ``make limits``."""

from __future__ import annotations

import pytest

from support.command_line import CommandLine
from support.limited_provider import ProviderSettings
from support.limited_run import ANSWER, limited_provider, run_limited, write_limited_evaluation, write_targets

CASES = 15


@pytest.mark.timeout(90)
async def test_a_run_finds_the_limit_of_its_key_and_has_an_answer_for_every_case(shell: CommandLine) -> None:
    settings = ProviderSettings(kind="bucket", per_minute=1200, burst=10, answer=ANSWER)
    async with limited_provider(settings) as (provider, url):
        write_targets(shell.folder, url, "small", "large")
        write_limited_evaluation(shell.folder, cases=CASES, targets=("small", "large"))
        figures = await run_limited(shell, provider)
    assert (figures.rows, figures.error_rows) == (2 * CASES, {}), f"{figures}\n{figures.result}"
    # Each trial has one answer and one judgement, and no more was asked than what came in flight at a few cuts.
    assert figures.answered[200] == 4 * CASES
    assert figures.answered[429] <= 40
