"""Handles the deliveries of one target's queue: those that run a call, and those that only wait for one that runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quintain.bus.base import Delivery
from quintain.contracts.headers import TRACEPARENT_HEADER
from quintain.errors import Fault
from quintain.observe import logs
from quintain.observe.semconv import process_span
from quintain.observe.spans import in_span
from quintain.routes import INVOKE
from quintain.rpc.server import request_id_of
from quintain.topology import target_queue
from quintain_worker.completion import Reply
from quintain_worker.context import WorkerContext
from quintain_worker.delivery import DeliveryHandler
from quintain_worker.request import IncomingRequest, parse_request
from quintain_worker.target import PauseState, WorkerTarget


class CallHandler:
    """Handles the deliveries of one target's queue."""

    def __init__(self, target: WorkerTarget, context: WorkerContext, pause: PauseState) -> None:
        self._target, self._context, self._pause = target, context, pause
        self._queue = target_queue(target.name).name

    async def run(self, delivery: Delivery, return_at: float) -> None:
        """Run a call, and answer it. One that waits at ``return_at``, in the loop's seconds, returns to its queue."""
        if not delivery.reply_to or not delivery.correlation_id:
            await delivery.dead_letter()
            return
        try:
            request = parse_request(delivery, self._target.name, self._target.check)
        except Fault as fault:
            await self._context.completion.finish(Reply(delivery, fault, request_id_of(delivery)))
            return
        ids = _log_ids(request, self._target)
        logs.set_call_ids(**ids)
        await in_span(
            partial(process_span, INVOKE.exchange.name, self._target.name, self._queue, **ids),
            self._handler(delivery, request, return_at).process,
            parent=delivery.headers.get(TRACEPARENT_HEADER),
        )

    async def join(self, delivery: Delivery, return_at: float, on_held: Callable[[], object]) -> bool:
        """Hold a message as long as its call runs in any worker, which takes no slot here.

        Returns whether it needs one: then it is still to be run. ``on_held`` is called where another worker runs it.
        """
        if not delivery.reply_to or not delivery.correlation_id:
            return True
        try:
            request = parse_request(delivery, self._target.name, self._target.check)
        except Fault:
            return True
        logs.set_call_ids(**_log_ids(request, self._target))
        return await self._handler(delivery, request, return_at).join(on_held)

    def _handler(self, delivery: Delivery, request: IncomingRequest, return_at: float) -> DeliveryHandler:
        return DeliveryHandler(self._target, self._context, self._pause, delivery, request, return_at)


def _log_ids(request: IncomingRequest, target: WorkerTarget) -> dict[str, str]:
    return {"request_id": request.request_id, "session_id": request.credential.id, "target": target.name}
