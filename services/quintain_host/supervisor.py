"""Answers for the processes of a host's slots: whether they run, and how they ended.

It runs in the host's parent process, so that a target that holds its interpreter's lock does not delay its answers. A
host with threads answers for itself; its queue ends with it.
"""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from quintain.bus.base import Bus, Consumer, Delivery, Envelope
from quintain.contracts.remote_target import ProcessStatus, WatchProcess
from quintain.errors import BadRequest, BusError
from quintain.rpc.server import send_reply
from quintain.topology import REPLY, supervisor_topology

log = logging.getLogger(__name__)

PREFETCH = 64

#: How many watchers of one process are told of its end: those that asked last. A process has one lease at a time.
MAX_WATCHERS = 8

#: How many ended processes are remembered, for a watcher that asks later.
MAX_ENDED = 256


@dataclass(frozen=True, slots=True)
class Supervision:
    """Who answers for a slot's process: the routing key of its supervisor, and the id of the process there."""

    supervisor_key: str
    process_id: str


class ProcessSupervisor:
    """Answers controllers that watch the processes of one host, and tells them when one ends."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._topology = supervisor_topology(secrets.token_urlsafe(24))
        self.key = self._topology.bindings[0].key
        self._consumer: Consumer | None = None
        #: Of each running process: the reply queue of each watcher, by correlation id.
        self._watchers: dict[str, OrderedDict[str, str]] = {}
        self._ended: OrderedDict[str, ProcessStatus] = OrderedDict()

    async def open(self) -> None:
        """Declare the queue, and answer from now on."""
        await self._bus.declare(self._topology)
        self._consumer = await self._bus.consume(self._topology.queues[0], self._on_request, prefetch=PREFETCH)

    async def close(self) -> None:
        """Answer no more. The queue ends here, or with the connection."""
        if self._consumer is not None:
            await self._consumer.drain(0)
            for queue in self._topology.queues:
                try:
                    await self._bus.delete(queue)
                except BusError as error:
                    log.info("The supervisor's queue ends with its connection: %s", error.message)

    def add_process(self) -> Supervision:
        """Answer for one more process, which is about to start."""
        supervision = Supervision(self.key, secrets.token_urlsafe(12))
        self._watchers[supervision.process_id] = OrderedDict()
        return supervision

    async def end_process(self, process_id: str, ended: str, log_tail: str) -> None:
        """Tell the watchers of a process how it ended. Raises nothing but a cancellation."""
        status = ProcessStatus(ended=ended, log_tail=log_tail)
        self._ended[process_id] = status
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        for correlation_id, reply_to in self._watchers.pop(process_id, OrderedDict()).items():
            envelope = Envelope(body=status.to_wire(), type="result", correlation_id=correlation_id, persistent=False)
            try:
                await self._bus.publish(REPLY, reply_to, envelope)
            except BusError as error:
                log.info("A watcher of process %s has gone: %s", process_id, error.message)

    async def _on_request(self, request: Delivery) -> None:
        try:
            await self._answer(request)
        except BusError as error:
            log.info("A watcher was not answered; it asks again: %s", error.message)
        finally:
            await request.ack()

    async def _answer(self, request: Delivery) -> None:
        try:
            process_id = WatchProcess.from_wire(request.body).process_id
        except BadRequest as bad_request:
            await send_reply(self._bus, request, bad_request)
            return
        watchers = self._watchers.get(process_id)
        if watchers is not None and request.reply_to and request.correlation_id:
            watchers[request.correlation_id] = request.reply_to
            watchers.move_to_end(request.correlation_id)
            if len(watchers) > MAX_WATCHERS:
                watchers.popitem(last=False)
        status = ProcessStatus() if watchers is not None else self._ended.get(process_id)
        await send_reply(self._bus, request, status or ProcessStatus(is_known=False))
