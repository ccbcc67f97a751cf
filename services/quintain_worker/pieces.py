"""The pieces of an answer on their way to a caller that asked for them: numbered, one message at a time.

They are a courtesy: the whole answer follows them, so what cannot be sent is left out, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging

from quintain.bus.base import Bus, Delivery
from quintain.contracts.invoke import Chunk
from quintain.contracts.text import whole
from quintain.errors import BusError
from quintain_worker.interim import say_before

log = logging.getLogger(__name__)


class Pieces:
    """One attempt's pieces. ``before`` is how many attempts there were at the call before this one."""

    def __init__(self, bus: Bus, delivery: Delivery, request_id: str, *, before: int) -> None:
        self._bus, self._delivery, self._request_id, self._before = bus, delivery, request_id, before
        self._attempt, self._seq = 0, 0
        self._waiting = ""
        self._woken = asyncio.Event()
        self._sending = asyncio.get_running_loop().create_task(self._send_on(), name="pieces")

    def heard(self, tries: int, delta: str) -> None:
        """Send a piece of the answer's text, together with those that wait already. A new try begins anew."""
        attempt = self._before + tries
        if attempt != self._attempt:
            self._attempt, self._seq, self._waiting = attempt, 0, ""
        self._waiting += delta
        self._woken.set()

    async def close(self) -> None:
        """Send no more: the whole answer follows."""
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)

    async def _send_on(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            delta, self._waiting = self._waiting, ""
            if not delta:
                continue
            chunk = Chunk(attempt=self._attempt, seq=self._seq, delta=whole(delta))
            self._seq += 1
            try:
                await say_before(self._bus, self._delivery, self._request_id, chunk)
            except BusError as error:
                log.info("The pieces of an answer are no longer sent: %s", error.message)
                return
