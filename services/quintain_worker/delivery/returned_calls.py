"""Puts calls that did not start back into their target's queue, those of one group in one message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from quintain.bus.base import Delivery, Envelope
from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE, GroupItem, encode_group
from quintain.errors import BusError
from quintain.routes import CALL_HEADERS, INVOKE, PROTOCOL_HEADER, PROTOCOL_VERSION, RETURNED_HEADER
from quintain.rpc.group_delivery import GroupedDelivery
from quintain.rpc.server import copyable_headers
from quintain_worker.delivery.context import WorkerContext

log = logging.getLogger(__name__)


def is_returned(delivery: Delivery) -> bool:
    """Return whether a worker that had no slot for the call has put it back before."""
    return RETURNED_HEADER in delivery.headers


async def return_calls(context: WorkerContext, target: str, calls: Sequence[Delivery]) -> None:
    """Put calls back into their target's queue, and acknowledge them.

    They are marked, so that no call is put back twice for want of a slot. Those of one group keep its correlation id:
    where nobody can read it any more, its sender learns that as of the group that it sent.
    """
    groups: dict[str, list[Delivery]] = {}
    for number, call in enumerate(calls):
        key = (call.group_correlation_id or "") if isinstance(call, GroupedDelivery) else f"alone {number}"
        groups.setdefault(key, []).append(call)
        context.metrics.count_returned(target)
    await asyncio.gather(*(_return_together(context, target, group) for group in groups.values()))


async def _return_together(context: WorkerContext, target: str, calls: list[Delivery]) -> None:
    try:
        await context.bus.publish(INVOKE.exchange, target, _envelope(calls))
    except BusError as error:
        log.warning("Calls could not be published again, and are requeued: %s", error.message)
        for call in calls:
            await call.requeue()
    else:
        for call in calls:
            await call.ack()


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
