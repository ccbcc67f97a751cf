"""The ledger, instrumented: times each operation, and logs an outage in two lines, at its beginning and its end.

Whoever waits for the ledger asks it every second and logs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from quintain.errors import BudgetUnavailable
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.ledger import Ledger, Operation, Returned, returned
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
        self._away = False
        self._refused_at = 0.0

    @property
    def kind(self) -> str:
        return self._ledger.kind

    async def do(self, operation: Operation[Returned]) -> Returned:
        return returned((await self.do_each([operation]))[0])

    async def do_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        began = time.perf_counter()
        try:
            outcomes = await self._ledger.do_each(operations)
        except BudgetUnavailable as unavailable:
            outcomes = [unavailable for _ in operations]
        seconds = time.perf_counter() - began
        for outcome in outcomes:
            if isinstance(outcome, BudgetUnavailable):
                self._refuses(outcome)
            else:
                self._answers()
            self._metrics.ledger(seconds, reachable=not isinstance(outcome, BudgetUnavailable))
        return outcomes

    def mourn_from(self, moment_ms: int) -> None:
        self._ledger.mourn_from(moment_ms)

    async def now(self) -> int:
        try:
            return await self._ledger.now()
        except BudgetUnavailable as unavailable:
            self._refuses(unavailable)
            raise

    async def close(self) -> None:
        await self._ledger.close()

    def _refuses(self, unavailable: BudgetUnavailable) -> None:
        self._refused_at = time.monotonic()
        if not self._away:
            self._away = True
            log.error("The ledger is out of reach, and everything waits for it: %s", unavailable.message)

    def _answers(self) -> None:
        if self._away and time.monotonic() - self._refused_at >= self._timings.ledger_quiet_seconds:
            self._away = False
            log.warning("The ledger answers again")
