"""The composition of a metadata service: begun on its bus and its ledger, found by `quintain status`, ended."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from quintain.bus.base import Bus
from quintain.contracts.token import digest
from quintain.operations.presence import present
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.ledger import Ledger
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.service import MetadataService


@contextlib.asynccontextmanager
async def running_metadata(
    bus: Bus,
    ledger: Ledger,
    admin_token: str | None,
    metrics: MetadataMetrics | None = None,
    *,
    timings: Timings = DEFAULT_TIMINGS,
) -> AsyncIterator[MetadataService]:
    """A running metadata service on its ledger, which is closed by whoever opened it."""
    admin_sha256 = None if admin_token is None else digest(admin_token)
    service = MetadataService(bus, ledger, admin_sha256, metrics, timings=timings)
    try:
        await service.start()
        async with present(bus, service.card):
            yield service
    finally:
        await service.stop()
