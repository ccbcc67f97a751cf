"""Puts calls back into their target's queue, as new messages.

A requeue of a delivery itself would count towards the queue's delivery limit: it is used only where the new message
cannot be published.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE, GroupItem, encode_group
from quintain.contracts.headers import CALL_HEADERS, PROTOCOL_HEADER, PROTOCOL_VERSION, RETURNED_HEADER
from quintain.errors import BusError
from quintain.routes import INVOKE
from quintain.rpc.groups import GroupedDelivery
from quintain.rpc.server import copyable_headers

log = logging.getLogger(__name__)


class MessageHolder(Protocol):
    """What settles a message: its delivery, or the call that holds it."""

    async def ack(self) -> None:
        """Acknowledge the message."""

    async def requeue(self) -> None:
        """Return the message to its queue."""


def copy_of(delivery: Delivery, remaining_seconds: float | None) -> Envelope:
    """Return a delivery as a new message that expires after ``remaining_seconds``, or as late as the delivery."""
    return Envelope(
        body=delivery.body,
        type=delivery.type,
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        headers=copyable_headers(delivery.headers),
        expiration_ms=delivery.expiration_ms if remaining_seconds is None else max(1, int(remaining_seconds * 1000)),
    )


async def return_copy(
    bus: Bus,
    delivery: Delivery,
    target: str,
    *,
    remaining_seconds: float | None = None,
    holder: MessageHolder | None = None,
) -> None:
    """Put a delivery back, as a new message that expires after ``remaining_seconds``, by default after as long as the
    delivery itself; it is settled by its ``holder``, by default itself."""
    await _put_back(bus, target, copy_of(delivery, remaining_seconds), [holder or delivery])


async def return_calls(bus: Bus, target: str, calls: Sequence[Delivery]) -> None:
    """Put calls back, those of one group together.

    They are marked, so that no call is put back twice for want of a slot. Those of one group keep its correlation id:
    where nobody can read it any more, its sender learns that as of the group that it sent.
    """
    groups: dict[str, list[Delivery]] = {}
    for number, call in enumerate(calls):
        key = (call.group_correlation_id or "") if isinstance(call, GroupedDelivery) else f"alone {number}"
        groups.setdefault(key, []).append(call)
    await asyncio.gather(*(_put_back(bus, target, _envelope(group), group) for group in groups.values()))


async def _put_back(bus: Bus, target: str, message: Envelope, holders: Sequence[MessageHolder]) -> None:
    try:
        await bus.publish(INVOKE.exchange, target, message)
    except BusError as error:
        log.warning("%d calls could not be published again, and are requeued: %s", len(holders), error.message)
        for holder in holders:
            await holder.requeue()
    else:
        for holder in holders:
            await holder.ack()


def _envelope(calls: Sequence[Delivery]) -> Envelope:
    first, headers = calls[0], [copyable_headers(call.headers) for call in calls]
    if len(calls) == 1 or not isinstance(first, GroupedDelivery):
        return Envelope(
            body=first.body,
            type=first.type,
            correlation_id=first.correlation_id,
            reply_to=first.reply_to,
            headers={**headers[0], RETURNED_HEADER: 1},
            expiration_ms=first.expiration_ms,
        )
    items = [
        GroupItem(call.correlation_id or "", call.body, {name: own[name] for name in own.keys() & CALL_HEADERS})
        for call, own in zip(calls, headers, strict=True)
    ]
    common = {name: value for name, value in headers[0].items() if name not in CALL_HEADERS}
    return Envelope(
        body=encode_group(items),
        type=INVOKE_GROUP_TYPE,
        content_type=GROUP_CONTENT_TYPE,
        correlation_id=first.group_correlation_id,
        reply_to=first.reply_to,
        headers={**common, PROTOCOL_HEADER: PROTOCOL_VERSION, RETURNED_HEADER: 1},
        expiration_ms=first.expiration_ms,
    )
