"""What the worker's tests stand on: a scripted ledger, whoever asks, and a server in a model provider's place."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, fake_ledger_service
from support.model_server import ModelServer, model_server
from support.running_worker import GatedProvider


@pytest.fixture
async def ledger() -> AsyncIterator[FakeLedgerService]:
    async with fake_ledger_service() as ledger:
        yield ledger


@pytest.fixture
async def evaluator(ledger: FakeLedgerService) -> FakeEvaluator:
    """Whoever asks target a, with a reply queue."""
    evaluator = FakeEvaluator(ledger.bus, "a")
    await evaluator.start()
    return evaluator


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


@pytest.fixture
def closed_gate() -> GatedProvider:
    """A provider that answers nobody until a test opens it."""
    gate = GatedProvider()
    gate.open.clear()
    return gate
