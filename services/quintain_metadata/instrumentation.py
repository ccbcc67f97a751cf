"""Wraps a ledger: measures each operation, and logs an outage once when it begins and once when it ends.

Callers that retry while the ledger is out of reach log nothing themselves. The log has the reason; the error that is
raised has none, because it becomes a fault, and clients must not learn the database's address.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from quintain.errors import BudgetUnavailable
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.ledger.base import Ledger, Operation, Returned, unwrap
from quintain_metadata.metrics import MetadataMetrics

log = logging.getLogger(__name__)

OUTAGE_MESSAGE = "The ledger is out of reach, try again; the metadata service's log has the reason"


class InstrumentedLedger:
    """A ledger that measures and logs the operations of the ledger it wraps.

    An outage is over when an operation succeeds and none has failed for `Timings.ledger_quiet_seconds`: with a full
    disk, operations that write nothing succeed while all others fail.
    """

    def __init__(
        self, ledger: Ledger, metrics: MetadataMetrics | None = None, timings: Timings = DEFAULT_TIMINGS
    ) -> None:
        self._ledger, self._metrics, self._timings = ledger, metrics or MetadataMetrics(), timings
        self._is_unreachable = False
        self._last_failure_at = 0.0

    @property
    def kind(self) -> str:
        """The kind of the wrapped ledger."""
        return self._ledger.kind

    async def transact(self, operation: Operation[Returned]) -> Returned:
        """Run one operation (`Ledger.transact`)."""
        started_at = time.perf_counter()
        try:
            outcome: Returned | Exception = await self._ledger.transact(operation)
        except Exception as error:
            outcome = error
        return unwrap(self._observe(outcome, time.perf_counter() - started_at))

    async def transact_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        """Run several operations (`Ledger.transact_each`); an outage is returned as the outcome of each."""
        started_at = time.perf_counter()
        try:
            outcomes = await self._ledger.transact_each(operations)
        except BudgetUnavailable as unavailable:
            outcomes = [unavailable for _ in operations]
        seconds = time.perf_counter() - started_at
        if outcomes and not any(isinstance(outcome, BudgetUnavailable) for outcome in outcomes):
            # One observation, because they were committed together.
            self._observe(outcomes[0], seconds)
            return outcomes
        return [self._observe(outcome, seconds) for outcome in outcomes]

    def _observe(self, outcome: Returned | Exception, seconds: float) -> Returned | Exception:
        """Measure and log an outcome; return it, or the error for clients in place of an outage."""
        is_reachable = not isinstance(outcome, BudgetUnavailable)
        self._metrics.observe_ledger_operation(seconds, is_reachable=is_reachable)
        if isinstance(outcome, BudgetUnavailable):
            return self._record_failure(outcome)
        self._record_success()
        return outcome

    def suspend_lease_expiry_until(self, timestamp_ms: int) -> None:
        """Suspend the expiry of leases (`Ledger.suspend_lease_expiry_until`)."""
        self._ledger.suspend_lease_expiry_until(timestamp_ms)

    def lapse_leases_until(self, timestamp_ms: int) -> None:
        """Limit which leases lapse (`Ledger.lapse_leases_until`)."""
        self._ledger.lapse_leases_until(timestamp_ms)

    def listen_for_capacity(self, callback: Callable[[str], None]) -> None:
        """Listen for free capacity (`Ledger.listen_for_capacity`)."""
        self._ledger.listen_for_capacity(callback)

    def announce_capacity(self, targets: Iterable[str]) -> None:
        """Announce free capacity (`Ledger.announce_capacity`)."""
        self._ledger.announce_capacity(targets)

    async def now(self) -> int:
        """Return the store's clock (`Ledger.now`)."""
        try:
            return await self._ledger.now()
        except BudgetUnavailable as unavailable:
            raise self._record_failure(unavailable) from None

    async def close(self) -> None:
        """Close the wrapped ledger."""
        await self._ledger.close()

    def _record_failure(self, unavailable: BudgetUnavailable) -> BudgetUnavailable:
        """Log the first failure of an outage; return the error for clients."""
        self._last_failure_at = time.monotonic()
        if not self._is_unreachable:
            self._is_unreachable = True
            log.error("The ledger is out of reach; requests wait for it: %s", unavailable.message)
        return BudgetUnavailable(OUTAGE_MESSAGE)

    def _record_success(self) -> None:
        if self._is_unreachable and time.monotonic() - self._last_failure_at >= self._timings.ledger_quiet_seconds:
            self._is_unreachable = False
            log.warning("The ledger answers again")
