"""The operations port: it lives before the service is ready, and ready is what came back through the broker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain.bus.base import Bus
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.config.loader import load_config
from quintain.errors import BrokerRefused, ConfigError
from quintain.observe.health import (
    CHECK_TIMEOUT_SECONDS,
    READINESS_CACHE_SECONDS,
    HealthCheck,
    OpsAddress,
    OpsEndpoints,
    serve_ops,
)
from quintain.observe.metrics import ServiceMetrics
from quintain.rpc.broker_probe import BrokerProbe, report_ready
from quintain_host.host import Host
from quintain_metadata.service import running_metadata
from quintain_metadata.store.opening import open_ledger_or_wait
from quintain_worker.worker import run_worker
from support.gateway_client import GatewayClient, open_gateway_client
from support.memory_fleet import ADMIN_TOKEN

CONFIG = "targets: {echo: {provider: mock}}\n"
READY = (200, {"status": "ready"})


async def test_a_scrape_is_written_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = ServiceMetrics("worker")
    metrics.counter("calls", "Calls", "target").labels("echo").inc()
    threads, write = list[threading.Thread](), metrics.exposition
    monkeypatch.setattr(ServiceMetrics, "exposition", lambda _: threads.append(threading.current_thread()) or write())
    assert b'{target="echo"} 1.0' in await metrics.exposition_beside()
    assert threading.main_thread() not in threads


async def passes() -> str | None:
    return None


@contextlib.asynccontextmanager
async def run_ops_server(bus: Bus, check: HealthCheck) -> AsyncIterator[GatewayClient]:
    """The port of a service that runs."""
    operations = OpsEndpoints(ServiceMetrics("metadata"), lambda _: None)
    async with (
        serve_ops(OpsAddress(0), operations) as url,
        report_ready(operations, bus, check),
        open_gateway_client(url) as door,
    ):
        yield door


@pytest.fixture
async def memory() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    broker.close()


async def test_it_lives_from_the_start_and_says_what_it_waits_for() -> None:
    told: list[str] = []
    operations = OpsEndpoints(ServiceMetrics("worker"), told.append)
    async with serve_ops(OpsAddress(0), operations) as url, open_gateway_client(url) as door:
        assert await door.get("/health/live") == (200, {"status": "live"})
        assert await door.get("/health/ready") == (503, {"status": "unready", "reason": "it is starting"})
        operations.set_not_ready("No broker at amqp://nowhere")
        await asyncio.sleep(READINESS_CACHE_SECONDS + 0.05)
        assert (await door.get("/health/ready"))[1]["reason"] == "No broker at amqp://nowhere"
        text = (await door.http.get("/metrics")).text
        assert "quintain_broker_connected 0.0\n" in text
        assert 'quintain_build_info{service="worker",version="' in text
        assert (await door.http.get("/elsewhere")).status_code == 404
        assert (await door.http.post("/metrics")).status_code == 405
    assert told == ["No broker at amqp://nowhere"]


async def test_ready_is_a_message_that_came_back(memory: MemoryBroker) -> None:
    bus = memory.connect()
    async with run_ops_server(bus, passes) as door:
        assert await door.get("/health/ready") == READY
        assert "quintain_broker_connected 1.0\n" in (await door.http.get("/metrics")).text
        await bus.close()
        await asyncio.sleep(READINESS_CACHE_SECONDS + 0.05)
        status, said = await door.get("/health/ready")
        assert status == 503
        assert "no message goes through the broker" in said["reason"]
        assert await door.get("/health/live") == (200, {"status": "live"})
        assert "quintain_broker_connected 0.0\n" in (await door.http.get("/metrics")).text


async def test_a_message_that_does_not_come_back_is_none(memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = memory.connect()
    round_trip = BrokerProbe(bus)
    assert await round_trip.check() is None

    async def swallow(*_: object, **__: object) -> None:
        """A broker that takes messages, and delivers none."""

    monkeypatch.setattr(MemoryBus, "publish", swallow)
    assert await round_trip.check() == f"no message came back through the broker within {CHECK_TIMEOUT_SECONDS:g} s"
    await round_trip.stop()
    await bus.close()


async def test_a_lost_queue_is_made_anew_and_a_refused_one_is_a_reason(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = memory.connect()
    round_trip = BrokerProbe(bus)
    assert await round_trip.check() is None
    memory.delete_queue(f"quintain.reply.{round_trip._queue.key}")
    assert await round_trip.check() is None
    await round_trip.stop()

    async def refuse(*_: object, **__: object) -> None:
        raise BrokerRefused("declaring queues: this user may not do that")

    monkeypatch.setattr(MemoryBus, "declare", refuse)
    assert await round_trip.check() == (
        "no message goes through the broker: declaring queues: this user may not do that"
    )
    await bus.close()


async def test_an_address_that_cannot_be_opened_names_its_option() -> None:
    operations = OpsEndpoints(ServiceMetrics("worker"), lambda _: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Port {number} of 127\.0\.0\.1 cannot be opened .*--ops-port"):
            async with serve_ops(OpsAddress(number), operations):
                pass
    with pytest.raises(ConfigError, match="There is no host not a host .*--ops-host"):
        async with serve_ops(OpsAddress(0, "not a host"), operations):
            pass


async def test_services_say_what_keeps_them(memory: MemoryBroker, tmp_path: Path) -> None:
    path = tmp_path / "quintain.yaml"
    path.write_text(CONFIG)
    metadata_bus, worker_bus = memory.connect(), memory.connect()
    async with (
        open_ledger_or_wait("sqlite://") as ledger,
        running_metadata(metadata_bus, ledger, ADMIN_TOKEN) as metadata,
        run_worker(worker_bus, load_config(path), {}) as worker,
    ):
        assert (await metadata.check(), await worker.check()) == (None, None)
        await worker_bus.close()
        assert await worker.check() == "not consumed: quintain.target.echo"
        await metadata_bus.close()
        assert str(await metadata.check()).startswith("not consumed: quintain.metadata, quintain.ledger.admit")


class EmptyTarget:
    """A target without any words."""

    config_specs = query_specs = ()


async def test_a_host_says_how_many_slots_take_no_lease(memory: MemoryBroker) -> None:
    bus = memory.connect()
    host = Host(bus, "nothing", EmptyTarget, 2)
    assert await host.check() == "2 of 2 slots do not consume lease requests"
    await host.start()
    async with asyncio.timeout(5):
        while await host.check() is not None:
            await asyncio.sleep(0)
    await bus.close()
    assert await host.check() == "2 of 2 slots do not consume lease requests"
    await host.stop(0)
