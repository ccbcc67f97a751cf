"""Health: live says the process answers, ready that the way to the metadata service and back is open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain.bus.memory import MemoryBroker
from quintain.contracts.credentials import digest
from quintain.errors import BudgetUnavailable
from quintain.observe import health as readiness
from quintain.rpc.requests import RpcClient, RpcRequest
from quintain.timings import Clock
from quintain_gateway.apis import health
from quintain_gateway.app import build_app
from quintain_gateway.auth import FleetGateway
from quintain_gateway.fleet_page import FleetAccess
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.server import serve_app
from quintain_gateway.settings import BindAddress, GatewayLimits
from quintain_metadata.metrics import OUTAGE_MESSAGE
from quintain_metadata.service import MetadataService, running_metadata
from quintain_metadata.store.opening import open_ledger, open_ledger_or_wait
from support.gateway_client import GatewayClient, open_gateway_client
from support.memory_fleet import ADMIN_TOKEN, MemoryFleet, memory_fleet

CONFIG = "targets: {echo: {provider: mock}}\n"


class SendCounter:
    """A caller's questions, counted."""

    def __init__(self, rpc_client: RpcClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.types: list[str] = []
        ask = rpc_client.publish

        async def counted(question: RpcRequest, correlation_id: str) -> None:
            self.types.append(question.type)
            await ask(question, correlation_id)

        monkeypatch.setattr(rpc_client, "publish", counted)


@contextlib.asynccontextmanager
async def gateway(memory: MemoryBroker, clock: Clock | None = None) -> AsyncIterator[tuple[str, RpcClient]]:
    """A gateway alone, before a broker on which there may be nobody."""
    bus = memory.connect()
    caller, limits, meter = RpcClient(bus), GatewayLimits(), GatewayMetrics()
    await caller.start()
    app = build_app(FleetGateway(caller, clock or Clock(), limits, meter), FleetAccess(bus))
    async with serve_app(app, BindAddress(), limits, meter) as url:
        yield url, caller
    await caller.close()
    await bus.close()


@contextlib.asynccontextmanager
async def metadata(memory: MemoryBroker) -> AsyncIterator[MetadataService]:
    async with (
        open_ledger_or_wait("sqlite://") as ledger,
        running_metadata(memory.connect(), ledger, ADMIN_TOKEN) as service,
    ):
        yield service


async def fresh_readiness(gateway_client: GatewayClient) -> tuple[int, dict[str, str]]:
    """The verdict after the one before is stale."""
    await asyncio.sleep(readiness.READINESS_CACHE_SECONDS + 0.05)
    return await gateway_client.get("/health/ready")


async def test_ready_follows_the_metadata_service_and_live_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHECK_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(readiness, "READINESS_CACHE_SECONDS", 0.0)
    memory = MemoryBroker()
    async with gateway(memory) as (url, _), open_gateway_client(url) as door:
        status, said = await door.get("/health/ready")
        assert (status, said["status"]) == (503, "unready")
        assert "quintain serve metadata" in said["reason"]
        async with metadata(memory):
            assert await fresh_readiness(door) == (200, {"status": "ready"})
            assert await door.get("/health/live") == (200, {"status": "live"})
        assert (await fresh_readiness(door))[0] == 503
        assert await door.get("/health/live") == (200, {"status": "live"})
    memory.close()


async def test_ready_says_that_the_ledger_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryBroker()
    bus, ledger = memory.connect(), await open_ledger("sqlite://")
    service = MetadataService(bus, ledger, digest(ADMIN_TOKEN))
    await service.start()

    async def lost(_: object) -> object:
        raise BudgetUnavailable("The ledger cannot be reached: the disk is full")

    monkeypatch.setattr(ledger, "transact", lost)
    async with gateway(memory) as (url, _), open_gateway_client(url) as door:
        assert await door.get("/health/ready") == (
            503,
            {"status": "unready", "reason": OUTAGE_MESSAGE},
        )
    await service.stop()
    await ledger.close()
    memory.close()


async def test_many_probes_at_once_are_one_question_and_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    memory = MemoryBroker()
    async with metadata(memory), gateway(memory) as (url, caller), open_gateway_client(url) as door:
        asked = SendCounter(caller, monkeypatch)
        answers = await asyncio.gather(*(door.get("/health/ready") for _ in range(20)))
        assert answers == [(200, {"status": "ready"})] * 20
        assert asked.types == ["info"]
        await fresh_readiness(door)
        assert asked.types == ["info", "info"]
    assert [record for record in caplog.records if record.name.startswith("quintain")] == []
    memory.close()


@pytest.mark.parametrize("skew_seconds", [-3600, 3600])
async def test_a_gateway_whose_clock_is_wrong_keeps_the_metadata_services_time(
    tmp_path: Path, skew_seconds: int
) -> None:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        assert fleet.running.memory is not None
        clock = Clock()
        clock.synchronize(int((time.time() + skew_seconds) * 1000))
        async with gateway(fleet.running.memory, clock) as (url, caller):
            await check_deadlines(fleet, url, clock)
            assert caller.in_flight == 0


async def check_deadlines(fleet: MemoryFleet, url: str, clock: Clock) -> None:
    async with open_gateway_client(url, (await fleet.open_session("echo")).token) as door:
        assert (await door.post("/invoke", {"question": "x"}))[0] == 200
        status, answer = await door.post("/invokeBatch", {"requests": [{"question": "y"}]})
    assert (status, answer["responses"][0]["rawText"]) == (200, "y")
    assert abs(clock.now_ms() - time.time() * 1000) < 5000


async def test_the_time_is_asked_for_once_and_not_with_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        assert fleet.running.memory is not None
        async with gateway(fleet.running.memory) as (url, caller):
            asked = SendCounter(caller, monkeypatch)
            async with open_gateway_client(url, (await fleet.open_session("echo")).token) as door:
                for _ in range(3):
                    await door.post("/invoke", {"question": "x"})
            assert asked.types == ["info", "invoke", "invoke", "invoke"]
