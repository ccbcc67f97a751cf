"""Sends this process's card to the metadata services, again and again: its heartbeats.

Calls do not depend on it: a refusal is logged once, and the service goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any

from quintain.bus.base import Bus, Envelope
from quintain.bus.failure_log import FailureLog
from quintain.contracts.message import Message
from quintain.contracts.service_card import ServiceCard
from quintain.errors import BrokerRefused, BusError, Unroutable
from quintain.routes import BEAT, Route
from quintain.rpc.server import log_defect
from quintain.timings import DEFAULT_TIMINGS, Timings

log = logging.getLogger(__name__)

#: Pause after a refusal, in seconds: the broker logs each one.
REFUSED_PAUSE_SECONDS = 30.0


class ServiceIdentity:
    """Identifies this process for its lifetime."""

    def __init__(self, service: str, name: str | None = None) -> None:
        self._service = service
        self.id = name or f"{socket.gethostname()}-{os.getpid()}"
        self.instance = secrets.token_hex(8)
        self._started_at, self._version = int(time.time() * 1000), importlib.metadata.version("quintain")

    def card(self, **facts: Any) -> ServiceCard:
        """Return this process's service card with the given current values."""
        return ServiceCard(
            service=self._service,
            id=self.id,
            instance=self.instance,
            version=self._version,
            started_at=self._started_at,
            **facts,
        )


async def send_beats(
    bus: Bus,
    card: Callable[[], ServiceCard],
    timings: Timings = DEFAULT_TIMINGS,
    route: Route[ServiceCard, Message] = BEAT,
) -> None:
    """Send heartbeats until cancelled, the first one at once; ``card`` is called for each. Raises nothing."""
    begun, ended = "`quintain status` does not show this service", "`quintain status` shows this service"
    failures = FailureLog(log, begun, ended, bus)
    while True:
        pause_seconds = timings.heartbeat_seconds
        try:
            await _send_beat(bus, card(), timings, route)
            failures.worked()
        except BusError as error:
            failures.failed(error)
            if isinstance(error, BrokerRefused):
                pause_seconds = REFUSED_PAUSE_SECONDS
        except Exception as error:
            log_defect(error, "sending a heartbeat")
        await asyncio.sleep(pause_seconds)


async def _send_beat(bus: Bus, card: ServiceCard, timings: Timings, route: Route[ServiceCard, Message]) -> None:
    envelope = Envelope(
        body=card.to_wire(),
        type=route.key,
        expiration_ms=int(timings.silent_seconds * 1000),
        persistent=False,
    )
    # A queue is bound for it only while a metadata service runs.
    with contextlib.suppress(Unroutable):
        await bus.publish(route.exchange, route.key, envelope, timeout_seconds=timings.heartbeat_seconds)
