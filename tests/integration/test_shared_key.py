"""Sessions that share one key, over a broker: nobody waits behind what another one published. How long they wait:
``make limits``."""

from __future__ import annotations

import asyncio

import pytest

from support.limited_provider import ProviderSettings
from support.limited_run import limited_provider
from support.process_fleet import process_fleet
from support.shared_key import CONFIG, measure_waits, open_session, publish_plainly, wait_until_moved

#: What one session publishes at once, and what the provider takes of it at a time.
MANY, LIMIT, SERVICE_SECONDS = 1_000, 16, 0.3


@pytest.mark.timeout(60)
async def test_ten_calls_do_not_wait_behind_a_thousand_of_a_plain_client(broker_url: str) -> None:
    settings = ProviderSettings(kind="none", in_flight=LIMIT, seconds=SERVICE_SECONDS)
    async with limited_provider(settings) as (provider, url):
        with process_fleet(broker_url, CONFIG.format(url=url), targets=["small"]) as fleet:
            fleet.extra_env["KEY"] = "k"
            _, large, few = await asyncio.gather(
                asyncio.to_thread(fleet.start_services, "metadata", "worker"),
                *(asyncio.to_thread(open_session, fleet, calls) for calls in (MANY, 100)),
            )
            await asyncio.to_thread(publish_plainly, broker_url, large.token, MANY)
            await asyncio.to_thread(wait_until_moved, broker_url)
            await measure_waits(broker_url, few.token, 10, SERVICE_SECONDS)
    assert len(provider.answered_words) < MANY / 2, "the others still wait"
