"""Sends the ledger's decisions to the workers that asked; a large replay is read and sent by itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from quintain.bus.base import Bus, Delivery
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, AdmitReply
from quintain.errors import ReplyExpired
from quintain.rpc.server import send_reply
from quintain_metadata.ledger.base import Ledger
from quintain_metadata.rules.replies import LargeReplay, read_replay


class LargeReplays:
    """The large replays that this service sends: one is in memory at a time, and the others wait."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: The attempts whose replays are sent or wait. Their workers repeat their admits meanwhile.
        self.attempt_ids = set[str]()


@dataclass(frozen=True, slots=True)
class AdmitReplySender:
    """Sends admissions to the worker that asked. Two that have the same address are equal."""

    address: tuple[str | None, str | None]
    bus: Bus = field(compare=False)
    ledger: Ledger = field(compare=False)
    delivery: Delivery = field(compare=False)
    large_replays: LargeReplays = field(compare=False)

    async def __call__(self, items: list[Admission], waiting_ids: list[str]) -> None:
        """Send the decided admissions, and the attempt ids that must wait; then each large replay."""
        large = [item for item in items if isinstance(item, LargeReplay)]
        await self._send([item for item in items if item not in large], waiting_ids)
        pending = [item for item in large if item.attempt_id not in self.large_replays.attempt_ids]
        attempt_ids = {item.attempt_id for item in pending}
        self.large_replays.attempt_ids.update(attempt_ids)
        try:
            for item in pending:
                async with self.large_replays.lock:
                    await self._send([await self._read(item)], [])
        finally:
            self.large_replays.attempt_ids.difference_update(attempt_ids)

    async def _read(self, replay: LargeReplay) -> Admission:
        try:
            return await self.ledger.transact(lambda _: read_replay(replay))
        except ReplyExpired as expired:
            return Admission(attempt_id=replay.attempt_id, fault=FaultReply.from_fault(expired))

    async def _send(self, items: list[Admission], waiting_ids: list[str]) -> None:
        now = await self.ledger.now()
        await send_reply(self.bus, self.delivery, AdmitReply(items=items, held=waiting_ids or None, now=now))
