"""Takes a delivered group apart, one delivery for each of its calls or replies.

Each of a group's calls is handled as if it had come alone.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping, Sequence
from enum import IntEnum

from quintain.bus.base import Bus, Delivery, Handler, run_handler
from quintain.contracts.group import INVOKE_GROUP_TYPE, GroupItem, decode_group
from quintain.contracts.headers import CALL_HEADERS, PROTOCOL_HEADER, PROTOCOL_VERSION, REQUEST_ID_HEADER
from quintain.errors import BadRequest, Fault
from quintain.routes import INVOKE
from quintain.rpc.server import integer_header, request_id_of, send_reply
from quintain.runtime.concurrency import cancel_and_wait


class _Settlement(IntEnum):
    """How a delivery is settled; of a group's calls, the last of these settles the group."""

    ACKNOWLEDGED = 0
    REQUEUED = 1
    DEAD_LETTERED = 2


class _GroupSettlement:
    """Settles a group's delivery once each of its calls is settled."""

    def __init__(self, delivery: Delivery, count: int) -> None:
        self._delivery, self._remaining = delivery, count
        self._settlement = _Settlement.ACKNOWLEDGED

    async def settle_one(self, settlement: _Settlement) -> None:
        """Note that one more call is settled; a group of which one call goes back goes back as a whole."""
        self._remaining -= 1
        self._settlement = max(self._settlement, settlement)
        if self._remaining:
            return
        match self._settlement:
            case _Settlement.ACKNOWLEDGED:
                await self._delivery.ack()
            case _Settlement.REQUEUED:
                await self._delivery.requeue()
            case _Settlement.DEAD_LETTERED:
                await self._delivery.dead_letter()


class GroupedDelivery:
    """One call or reply of a group, as a `Delivery`; the group's message is settled with the last of them.

    ``problem`` says why the item is no call, and is empty where it is one.
    """

    def __init__(
        self, group: Delivery, item: GroupItem, settlement: _GroupSettlement, headers: Mapping[str, object]
    ) -> None:
        self.body, self.correlation_id, self.problem, self.headers = (
            item.body,
            item.correlation_id,
            item.problem,
            headers,
        )
        #: The type that the request or reply has where it is sent alone.
        self.type = item.type or INVOKE.name
        self.group_correlation_id, self.reply_to, self.user_id = group.correlation_id, group.reply_to, group.user_id
        self.expiration_ms, self.redelivered = group.expiration_ms, group.redelivered
        self.exchange, self.routing_key = group.exchange, group.routing_key
        self._settlement, self._is_settled = settlement, False

    async def ack(self) -> None:
        """Implements `Delivery.ack`."""
        await self._settle(_Settlement.ACKNOWLEDGED)

    async def requeue(self) -> None:
        """Implements `Delivery.requeue`: the whole group returns to its queue once its other calls are settled."""
        await self._settle(_Settlement.REQUEUED)

    async def dead_letter(self) -> None:
        """Implements `Delivery.dead_letter`: the whole group is rejected once its other calls are settled."""
        await self._settle(_Settlement.DEAD_LETTERED)

    async def _settle(self, settlement: _Settlement) -> None:
        if not self._is_settled:
            self._is_settled = True
            await self._settlement.settle_one(settlement)


def is_group(delivery: Delivery) -> bool:
    """Return whether a delivery is a group of requests."""
    return delivery.type == INVOKE_GROUP_TYPE


def split_group(delivery: Delivery) -> list[GroupedDelivery]:
    """Return the calls of a group as deliveries. Raises a `Fault` where the group cannot be taken apart: none of its
    calls was looked at then."""
    items = decode_group(delivery.body)
    version = integer_header(delivery.headers, PROTOCOL_HEADER)
    if version not in {None, PROTOCOL_VERSION}:
        problem = f"{PROTOCOL_HEADER}: this fleet speaks version {PROTOCOL_VERSION}, not {version}"
        items = [item._replace(problem=problem) for item in items]
    _require_calls(items)
    common = {name: value for name, value in delivery.headers.items() if name not in CALL_HEADERS}
    settlement = _GroupSettlement(delivery, len(items))
    return [GroupedDelivery(delivery, item, settlement, {**common, **item.headers}) for item in items]


def _require_calls(items: Sequence[GroupItem]) -> None:
    """Raise `BadRequest` where these items are not calls of one session."""
    if len({item.correlation_id for item in items}) < len(items):
        raise BadRequest("group: two requests have one correlationId: their replies could not be told apart")
    seen = set[object]()
    for number, item in enumerate(items, 1):
        if item.type:
            raise BadRequest(f"group: item {number} is no request")
        foreign = [name for name in item.headers if name not in CALL_HEADERS]
        if foreign:
            raise BadRequest(f"group: item {number} has headers that belong to the message: one session, one target")
        request_id = item.headers.get(REQUEST_ID_HEADER) or item.correlation_id
        if isinstance(request_id, str) and not item.problem:
            if request_id in seen:
                raise BadRequest(f"{REQUEST_ID_HEADER}: two items of the group have one request id")
            seen.add(request_id)


def split_replies(delivery: Delivery) -> list[GroupedDelivery]:
    """Return the replies of a group. Raises a `Fault` where the group cannot be taken apart."""
    items = decode_group(delivery.body)
    settlement = _GroupSettlement(delivery, len(items))
    return [GroupedDelivery(delivery, item, settlement, item.headers) for item in items]


async def handle_each(handler: Handler, calls: Sequence[GroupedDelivery]) -> None:
    """Run the handler on each call, at the same time; returns when all have ended."""
    if not calls:
        return
    loop = asyncio.get_running_loop()
    all_ended: asyncio.Future[None] = loop.create_future()
    remaining = len(calls)

    async def run(call: GroupedDelivery) -> None:
        nonlocal remaining
        try:
            await run_handler(handler, call)
        finally:
            # Counted here: a callback for each task would be an event of the loop for each.
            remaining -= 1
            if not remaining and not all_ended.done():
                all_ended.set_result(None)

    # An empty context for each, as every delivery has.
    tasks = [contextvars.Context().run(loop.create_task, run(call)) for call in calls]
    try:
        await all_ended
    except BaseException:
        await cancel_and_wait(*tasks)
        raise


def group_handler(bus: Bus, handler: Handler) -> Handler:
    """Return a handler that takes groups apart, and runs ``handler`` on each call and on every other delivery.

    A group that can neither be taken apart nor answered goes to ``handler`` as a whole.
    """

    async def handle(delivery: Delivery) -> None:
        if not is_group(delivery):
            await handler(delivery)
            return
        calls = split_group_or_fault(delivery)
        if not isinstance(calls, Fault):
            await handle_each(handler, await refuse_broken(bus, calls))
        elif delivery.reply_to and delivery.correlation_id:
            await refuse_group(bus, delivery, calls)
        else:
            await handler(delivery)

    return handle


def split_group_or_fault(delivery: Delivery) -> list[GroupedDelivery] | Fault:
    """Return what `split_group` returns, or the fault that it raises."""
    try:
        return split_group(delivery)
    except Fault as fault:
        return fault


async def refuse_broken(bus: Bus, items: Sequence[GroupedDelivery]) -> list[GroupedDelivery]:
    """Answer each item of a group that is no call with a fault of its own, and return the calls."""
    for item in items:
        if item.problem:
            await send_reply(bus, item, BadRequest(item.problem), {REQUEST_ID_HEADER: request_id_of(item)})
            await item.ack()
    return [item for item in items if not item.problem]


async def refuse_group(bus: Bus, delivery: Delivery, fault: Fault) -> None:
    """Answer a group as a whole, under its own correlation id: none of its calls was looked at."""
    await send_reply(bus, delivery, fault)
    await delivery.ack()
