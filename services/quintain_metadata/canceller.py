"""Taking calls back: recorded first, and then told to whom it concerns, the workers that run them and the admission
desk where they wait."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from quintain.bus.base import Bus, Envelope
from quintain.contracts.ledger import CallKey, CallsTakenBack
from quintain.contracts.metadata import CallsCancelled
from quintain.errors import BusError, Unroutable
from quintain.routes import CANCEL
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import CANCEL as CANCEL_EXCHANGE
from quintain_metadata import cancels
from quintain_metadata.desk import Desk
from quintain_metadata.ledger import Ledger
from quintain_metadata.sessions import Session

log = logging.getLogger(__name__)


class Canceller:
    """Cancels a session's calls, a page of them in a transaction."""

    def __init__(self, bus: Bus, ledger: Ledger, desk: Desk, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._bus, self._ledger, self._desk, self._timings = bus, ledger, desk, timings

    async def cancel(self, session: Session, request_ids: Sequence[str]) -> CallsCancelled:
        """Cancel these calls, known or not. What was recorded stands, whoever could be told of it."""
        wanted = sorted(set(request_ids))
        cancelled = 0
        to_abort: list[CallKey] = []
        for start in range(0, len(wanted), cancels.PAGE):
            page = wanted[start : start + cancels.PAGE]
            taken = await self._ledger.do(partial(cancels.cancel, session=session, request_ids=page))
            cancelled += taken.cancelled
            to_abort += [CallKey(session_id=session.id, request_id=request_id) for request_id in taken.to_abort]
        if to_abort:
            await self._fan_out(CallsTakenBack(calls=to_abort))
        await self._desk.try_calls_again({(session.id, request_id) for request_id in wanted})
        return CallsCancelled(cancelled=cancelled)

    async def _fan_out(self, taken_back: CallsTakenBack) -> None:
        """Tell every worker at once. One that does not hear it does so with its next heartbeat."""
        envelope = Envelope(body=taken_back.to_wire(), type=CANCEL.key, persistent=False)
        try:
            await self._bus.publish(CANCEL_EXCHANGE, "", envelope, timeout=self._timings.heartbeat_seconds)
        except Unroutable:
            log.info("No worker hears cancellations at once; each hears them with its heartbeat")
        except BusError as error:
            log.warning("A cancellation is heard with the next heartbeats only: %s", error.message)
