"""One limit of a provider key over three metadata services and several workers, whichever of them is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from faults.load import is_long
from quintain.client.client import connect_admin
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.session import OpenSession
from quintain.timings import DEFAULT_TIMINGS
from support.limited_provider import LimitedProvider, ProviderSettings
from support.limited_run import limited_provider
from support.process_fleet import ADMIN_TOKEN, Process, ProcessFleet, process_fleet
from support.quick import lease_variable
from support.recording_bus import recording_client
from support.servers.rabbitmq_admin import BrokerUnderTest

LIMIT, PER_MINUTE, BURST = 8, 1200, 20
CALLS = 900 if is_long() else 120

#: How long a call takes: the limit in flight and the rate allow nearly the same.
CALL_SECONDS = 0.35

#: Between the kills, and from the last one to the last answer at the latest.
KILL_SECONDS, END_SECONDS = 2.0 if is_long() else 1.0, 60.0 + CALLS * 60 / PER_MINUTE

#: The lease of a worker, and how many there are. In this time the quota's lease lapses, a sweep finds that, and the
#: admits are repeated: that takes three fifths of it, and the rest is spare.
LEASE_SECONDS, WORKERS = (DEFAULT_TIMINGS.lease_seconds, 3) if is_long() else (6.0, 2)

OWNS = "This service decides the calls of quota 'team'"

CONFIG = """
quotas:
  team: {{requests_per_minute: {rate}, concurrency: {{start: {limit}, min: {limit}, max: {limit}}}}}
targets:
  small: {{provider: openai, model: m, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}", quota: team}}
  large: {{provider: openai, model: n, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}", quota: team}}
"""


@dataclass
class WatchedProvider(LimitedProvider):
    """Counts what it works on at a time since it was last asked, and when it began to work on each request."""

    most_in_flight: int = 0
    began_at: list[float] = field(default_factory=list)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.began_at.append(asyncio.get_running_loop().time())
        self.most_in_flight = max(self.most_in_flight, self.in_flight + 1)
        return await super().complete(request)


@dataclass
class QuotaFleet:
    """Three metadata services and the workers, and the provider of their key."""

    processes: ProcessFleet
    provider: WatchedProvider
    metadata: list[Process]
    workers: list[Process]

    def owner(self) -> Process:
        """The service that took the quota last."""
        taken = [
            (process.log.stat().st_mtime_ns, process) for process in self.metadata if OWNS in process.read_output()
        ]
        return max(taken, key=lambda each: each[0])[1]


@pytest.fixture
async def fleet(
    breakable_broker: BrokerUnderTest, fast_queue_stats: None, fresh_postgres_url: str
) -> AsyncIterator[QuotaFleet]:
    settings = ProviderSettings(kind="bucket", per_minute=PER_MINUTE, burst=BURST, seconds=CALL_SECONDS)
    provider = WatchedProvider(settings)
    async with limited_provider(settings, provider) as (_, url):
        config = CONFIG.format(url=url, rate=PER_MINUTE, limit=LIMIT)
        with process_fleet(breakable_broker.url, config, targets=["small", "large"]) as processes:
            processes.extra_env |= {"QUINTAIN_LEDGER_URL": fresh_postgres_url, "QUINTAIN_LOG_LEVEL": "info", "KEY": "k"}
            processes.extra_env |= lease_variable(LEASE_SECONDS)
            started = await asyncio.to_thread(processes.start_services, *["metadata"] * 3, *["worker"] * WORKERS)
            yield QuotaFleet(processes, provider, started[:3], started[3:])


async def call_all(fleet: QuotaFleet, names: list[str], max_calls: int) -> list[str]:
    """Ask all of them at once, of both targets, and return the answers."""
    async with connect_admin(fleet.processes.broker_url, ADMIN_TOKEN) as admin:
        session = await admin.open(OpenSession(default_target="small", max_calls=max_calls))
    async with recording_client(fleet.processes.broker_url, session.token) as asking:

        async def ask(number: int, name: str) -> str:
            request = InvokeRequest(question=name, target="large" if number % 2 else None)
            deadline = END_SECONDS + 60
            return (await asking.client.send(request, request_id=name, deadline_seconds=deadline)).raw_text

        return await asyncio.gather(*(ask(number, name) for number, name in enumerate(names)))


async def kill_one_after_another(fleet: QuotaFleet) -> float:
    """Kill a worker, a metadata service that does not own the quota, and the owner; returns when that was."""
    while not fleet.provider.began_at:
        await asyncio.sleep(0.05)
    await asyncio.sleep(KILL_SECONDS)
    fleet.workers[0].kill()
    await asyncio.sleep(KILL_SECONDS)
    next(process for process in fleet.metadata if process is not fleet.owner()).kill()
    await asyncio.sleep(KILL_SECONDS)
    fleet.owner().kill()
    return asyncio.get_running_loop().time()


async def test_the_limits_hold_and_every_call_is_answered_whoever_is_killed(fleet: QuotaFleet) -> None:
    provider, killing = fleet.provider, asyncio.create_task(kill_one_after_another(fleet))
    async with asyncio.timeout(END_SECONDS + 3 * KILL_SECONDS):
        answers = await call_all(fleet, [f"q{number}" for number in range(CALLS)], CALLS)
    killed_at = await killing
    assert set(answers) == {provider.settings.answer}
    # The dead worker's calls are given up by the provider's clients only: they count in both numbers.
    assert provider.most_in_flight <= LIMIT
    refused = sum(count for (_, status), count in provider.answered.items() if status == 429)
    assert refused <= LIMIT, "more than was in flight at the dead"
    later = [each for each in provider.began_at if each > killed_at]
    assert max(after - before for before, after in zip([killed_at, *later], later, strict=False)) <= LEASE_SECONDS
    await assert_no_slot_leaked(fleet)


async def assert_no_slot_leaked(fleet: QuotaFleet) -> None:
    """As many calls run at once as the limit says, and then none."""
    await asyncio.sleep(1)
    fleet.provider.settings = ProviderSettings(kind="none", seconds=1.5)
    fleet.provider.most_in_flight = 0
    await call_all(fleet, [f"again{number}" for number in range(LIMIT)], LIMIT)
    assert fleet.provider.most_in_flight == LIMIT
    await asyncio.sleep(2 * DEFAULT_TIMINGS.sweep_seconds)
    async with connect_admin(fleet.processes.broker_url, ADMIN_TOKEN) as admin:
        (quota,) = (await admin.quotas()).quotas
    assert (quota.limit, quota.in_flight, quota.waiting) == (LIMIT, 0, 0)
