"""The ledger, instrumented: times each operation, and logs an outage in two lines, at its beginning and its end.

Whoever waits for the ledger asks it every second and logs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from quintain.errors import BudgetUnavailable
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.ledger.base import Ledger, Operation, Returned, unwrap
from quintain_metadata.metrics import MetadataMetrics

log = logging.getLogger(__name__)


class InstrumentedLedger:
    """Another ledger, instrumented.

    An outage is over when the ledger has answered and has refused nothing for `Timings.ledger_quiet_seconds`: a full
    disk takes what writes nothing, and refuses all the rest.
    """

    def __init__(
        self, ledger: Ledger, metrics: MetadataMetrics | None = None, timings: Timings = DEFAULT_TIMINGS
    ) -> None:
        self._ledger, self._metrics, self._timings = ledger, metrics or MetadataMetrics(), timings
        self._is_unreachable = False
        self._last_failure_at = 0.0

    @property
    def kind(self) -> str:
        return self._ledger.kind

    async def transact(self, operation: Operation[Returned]) -> Returned:
        return unwrap((await self.transact_each([operation]))[0])

    async def transact_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        started_at = time.perf_counter()
        try:
            outcomes = await self._ledger.transact_each(operations)
        except BudgetUnavailable as unavailable:
            outcomes = [unavailable for _ in operations]
        seconds = time.perf_counter() - started_at
        for outcome in outcomes:
            if isinstance(outcome, BudgetUnavailable):
                self._record_failure(outcome)
            else:
                self._record_success()
            self._metrics.observe_ledger_operation(seconds, is_reachable=not isinstance(outcome, BudgetUnavailable))
        return outcomes

    def suspend_lease_expiry_until(self, timestamp_ms: int) -> None:
        self._ledger.suspend_lease_expiry_until(timestamp_ms)

    async def now(self) -> int:
        try:
            return await self._ledger.now()
        except BudgetUnavailable as unavailable:
            self._record_failure(unavailable)
            raise

    async def close(self) -> None:
        await self._ledger.close()

    def _record_failure(self, unavailable: BudgetUnavailable) -> None:
        self._last_failure_at = time.monotonic()
        if not self._is_unreachable:
            self._is_unreachable = True
            log.error("The ledger is out of reach, and everything waits for it: %s", unavailable.message)

    def _record_success(self) -> None:
        if self._is_unreachable and time.monotonic() - self._last_failure_at >= self._timings.ledger_quiet_seconds:
            self._is_unreachable = False
            log.warning("The ledger answers again")
