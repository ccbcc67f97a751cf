"""How a worker asks and tells the ledger: over the bus, or by a function call where both are in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.ledger import AdmitBatch, AdmitReply, SettleBatch
from quintain.errors import Fault
from quintain.routes import ADMIT, SETTLE
from quintain.rpc.requests import RpcClient
from quintain.timings import Timings

log = logging.getLogger(__name__)

#: All admits of a worker share one correlation id: their answers are matched by the attempt id.
CORRELATION_ID = "admit"

#: Is called with each answer to admits; an answer may come twice.
OnAdmitReply = Callable[[AdmitReply], None]


class LedgerPort(Protocol):
    """Where a worker's admits are decided and its settles recorded; each may be sent again."""

    async def admit(self, batch: AdmitBatch, on_reply: OnAdmitReply, key: str) -> None:
        """Send admits. Each is answered once it is decided, or has to wait; what gets no answer is to be sent again.

        ``key`` is where the bus takes them. Raises `BusError` where they cannot be sent, and `BadRequest` where one of
        them cannot be written.
        """

    async def settle(self, batch: SettleBatch) -> None:
        """Record how attempts ended; returns when the ledger has that, or a queue keeps it for the ledger.

        Raises `BusError` where it cannot be sent, and `BadRequest` where one of them cannot be written.
        """


class BusLedgerPort:
    """Implements `LedgerPort` where the ledger is elsewhere: a message for each batch."""

    def __init__(self, bus: Bus, rpc_client: RpcClient, timings: Timings) -> None:
        self._bus, self._rpc_client, self._timings = bus, rpc_client, timings

    async def admit(self, batch: AdmitBatch, on_reply: OnAdmitReply, key: str) -> None:
        """Implements `LedgerPort.admit`."""
        self._rpc_client.subscribe(CORRELATION_ID, partial(_read_reply, on_reply))
        envelope = Envelope(
            body=batch.to_wire(),
            type=ADMIT.key,
            correlation_id=CORRELATION_ID,
            reply_to=self._rpc_client.reply_key,
            expiration_ms=int(self._timings.ledger_silence_seconds * 1000),
            persistent=False,
        )
        await self._bus.publish(ADMIT.exchange, key, envelope, timeout_seconds=self._timings.admit_repeat_seconds)

    async def settle(self, batch: SettleBatch) -> None:
        """Implements `LedgerPort.settle`."""
        await self._bus.publish(SETTLE.exchange, SETTLE.key, Envelope(body=batch.to_wire(), type=SETTLE.key))


def _read_reply(on_reply: OnAdmitReply, delivery: Delivery) -> None:
    if delivery.type != "result":
        log.error("The ledger refused a batch of admits; they will be repeated")
        return
    try:
        answer = AdmitReply.from_wire(delivery.body)
    except Fault as unreadable:
        log.error("An unreadable answer of the ledger was dropped: %s", unreadable.message)
        return
    on_reply(answer)
