"""What services count: every call, attempt, try and batch of a real fleet, under labels of few values."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from quintain.bus.memory import MemoryBroker
from quintain.client.client import connect, connect_admin
from quintain.config.loader import load_config
from quintain.contracts.fleet import QuotaState, RegisteredTarget
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import TargetCard
from quintain.contracts.session import OpenSession
from quintain.errors import Fault, Throttled
from quintain.observe.metrics import ServiceMetrics
from quintain_metadata.metrics import MAX_QUOTAS, LedgerGauges, MetadataMetrics
from quintain_metadata.service import running_metadata
from quintain_metadata.store.opening import open_ledger_or_wait
from quintain_worker.attempt import ask_provider
from quintain_worker.providers.provider import Billing, CallHolder, ProviderAnswer, ProviderFailure
from quintain_worker.target import WorkerMetrics, WorkerTarget
from quintain_worker.worker import run_worker
from support.memory_fleet import ADMIN_TOKEN

CONFIG = "targets: {echo: {provider: mock, max_concurrency: 3}, broken: {provider: mock, fail_rate: 1, max_tries: 1}}\n"


def sample_value(metrics: ServiceMetrics, name: str, labels: Mapping[str, str] | None = None) -> float | None:
    return metrics.registry.get_sample_value(name, dict(labels or {}))


async def test_a_calls_life_is_counted_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "quintain.yaml"
    path.write_text(CONFIG)
    memory, at_worker, at_ledger = MemoryBroker(), WorkerMetrics(), MetadataMetrics()
    async with (
        open_ledger_or_wait("sqlite://") as ledger,
        running_metadata(memory.connect(), ledger, ADMIN_TOKEN, at_ledger),
        run_worker(memory.connect(), load_config(path), {}, metrics=at_worker) as worker,
    ):
        at_worker.set_service_card(worker.card)
        async with connect_admin("memory://", ADMIN_TOKEN, memory=memory) as admin:
            session = await admin.open(OpenSession(default_target="echo", max_calls=10))
        async with connect("memory://", session.token, memory=memory) as client:
            await client.invoke("x")
            with pytest.raises(Fault):
                await client.invoke("a secret", target="broken")
        assert sample_value(at_worker, "quintain_target_slots", {"target": "echo", "kind": "mock"}) == 3
        age = sample_value(at_worker, "quintain_heartbeat_age_seconds")
        assert age is not None
        assert age < 15
    memory.close()
    assert sample_value(at_worker, "quintain_worker_calls_total", {"target": "echo", "code": "ok"}) == 1
    assert sample_value(at_worker, "quintain_worker_attempts_total", {"target": "echo", "outcome": "result"}) == 1
    assert sample_value(at_worker, "quintain_worker_provider_seconds_count", {"target": "echo", "end": "ok"}) == 1
    assert sample_value(at_worker, "quintain_worker_queue_wait_seconds_count", {"target": "echo"}) == 1
    assert (
        sample_value(at_worker, "quintain_worker_calls_total", {"target": "broken", "code": "provider_error"}) or 0
    ) >= 1
    assert (sample_value(at_ledger, "quintain_metadata_admits_total", {"code": "granted"}) or 0) >= 2
    assert sample_value(at_ledger, "quintain_metadata_settles_total", {"outcome": "result"}) == 1
    assert (sample_value(at_ledger, "quintain_metadata_batch_size_count", {"kind": "admit"}) or 0) >= 2
    assert sample_value(at_ledger, "quintain_metadata_ledger_reachable") == 1
    assert (sample_value(at_ledger, "quintain_metadata_ledger_seconds_count") or 0) > 2
    text = at_worker.exposition() + at_ledger.exposition()
    for private in ("a secret", session.token, session.session_id):
        assert private.encode() not in text


class StubProvider:
    """A provider that answers, or fails as it is told."""

    def __init__(self, failure: BaseException | None) -> None:
        self._failure = failure

    async def answer(self, *_: object, **__: object) -> ProviderAnswer:
        if self._failure is not None:
            raise self._failure
        return ProviderAnswer(text="x")

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("failure", "end", "throttled"),
    [
        (None, "ok", None),
        (ProviderFailure(Throttled("slow down"), Billing.UNBILLED), "unbilled", 1),
        (ProviderFailure(Throttled("slow down"), Billing.BILLED), "billed", 1),
        (asyncio.CancelledError(), "unknown", None),
        (RuntimeError("a defect"), "unknown", None),
    ],
    ids=["answer", "throttled", "billed", "cut off", "defect"],
)
async def test_every_try_is_timed_by_how_it_ended(
    failure: BaseException | None, end: str, throttled: float | None
) -> None:
    meter = WorkerMetrics()
    card = TargetCard(name="t", provider="mock", max_concurrency=1)
    target = WorkerTarget(name="t", provider=StubProvider(failure), card=card)
    with contextlib.nullcontext() if failure is None else pytest.raises(type(failure)):
        await ask_provider(target, CallHolder("s", "r", "a", "w"), meter, InvokeRequest(question="q"), 1)
    assert sample_value(meter, "quintain_worker_provider_seconds_count", {"target": "t", "end": end}) == 1
    assert sample_value(meter, "quintain_worker_throttled_total", {"target": "t"}) == throttled


async def test_the_meter_names_so_many_quotas_at_most() -> None:
    meter = MetadataMetrics()
    meter.read_quotas = lambda: [
        QuotaState(id=f"{number}", name=f"q{number}", targets=["a"], limit=9, in_flight=8, waiting=7, throttled=6)
        for number in range(MAX_QUOTAS + 1)
    ]
    for name, value in (("limit", 9), ("in_flight", 8), ("waiting", 7), ("throttled", 6)):
        assert sample_value(meter, f"quintain_metadata_quota_{name}", {"quota": "q0"}) == value
        assert sample_value(meter, f"quintain_metadata_quota_{name}", {"quota": f"q{MAX_QUOTAS}"}) is None


async def test_the_meter_says_for_how_long_a_target_is_paused() -> None:
    meter = MetadataMetrics()
    paused = RegisteredTarget(name="a", provider="mock", max_concurrency=9, running=3, paused_until=61_000)
    ready = RegisteredTarget(name="b", provider="mock", max_concurrency=9, paused_until=500)
    meter.set_gauges(LedgerGauges(targets=(paused, ready), now=1_000))
    for target, running, seconds in (("a", 3, 60), ("b", 0, 0)):
        assert sample_value(meter, "quintain_metadata_target_running", {"target": target}) == running
        assert sample_value(meter, "quintain_metadata_target_paused_seconds", {"target": target}) == seconds
