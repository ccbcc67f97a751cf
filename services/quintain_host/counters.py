"""Counts a host's leases and runs: the counters, the pipe on which slots' processes report, and the metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from quintain.observe.metrics import ServiceMetrics
from quintain.programs.program import OutputTail

#: Events that `HostCounters.count` takes: a lease was given, a lease ended, and the outcome of a run.
LEASE_GIVEN: Final = "lease"
LEASE_ENDED: Final = "over"
RUN_OUTCOMES: Final = ("ended", "failed", "cancelled")


@dataclass(slots=True)
class HostCounters:
    """Counts of one host: leases given, leases active and runs by outcome.

    The outcome of a run is ``ended``, ``failed`` (the target raised) or ``cancelled``. ``on_count`` is called with each
    event after it was counted, ``on_address`` with the id of a lease and its driver's routing key when that changes,
    and with two empty texts at the end of the lease.
    """

    leases: int = 0
    active_leases: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    on_count: Callable[[str], object] = lambda event: None
    on_address: Callable[[str, str], object] = lambda lease_id, key: None

    def count(self, event: str) -> None:
        """Count one event: `LEASE_GIVEN`, `LEASE_ENDED` or one of `RUN_OUTCOMES`."""
        match event:
            case "lease":
                self.leases += 1
                self.active_leases += 1
            case "over":
                self.active_leases -= 1
            case outcome:
                self.runs[outcome] += 1
        self.on_count(event)


#: Message: the child consumes lease requests.
READY: Final = "ready"

#: The messages that `HostCounters.count` takes.
COUNTED: Final = frozenset({LEASE_GIVEN, LEASE_ENDED, *RUN_OUTCOMES})

#: An unfinished message is kept up to so many bytes.
MAX_MESSAGE_BYTES = 4096


class IpcWriter:
    """Writes messages to the pipe of an `IpcReader`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    def send(self, message: str) -> None:
        """Write a line: `READY` or one of `COUNTED`; a message that cannot be written is dropped."""
        # The end of the parent is noticed elsewhere (`wait_parent_exit`). A full pipe (65,536 bytes) loses a count.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._descriptor, message.encode() + b"\n")

    def send_address(self, lease_id: str, key: str) -> None:
        """Write which lease is served and its driver's routing key; two empty texts for none."""
        self.send(json.dumps([lease_id, key]))

    async def wait_parent_exit(self) -> None:
        """Wait until the parent has ended, which closes the pipe's read end: only then is the write end readable.

        A target may close this process's standard streams, and knows nothing of this descriptor.
        """
        loop, exited = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(self._descriptor)


class IpcReader(OutputTail):
    """Calls ``on_message`` with each line; it may be anything, because the writing process runs the target's code."""

    def __init__(self, on_message: Callable[[str], None]) -> None:
        super().__init__(MAX_MESSAGE_BYTES)
        self._on_message = on_message

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol.data_received`."""
        *lines, self.data = (self.data + data).split(b"\n")
        del self.data[:-MAX_MESSAGE_BYTES]
        for line in lines:
            self._on_message(line.decode(errors="replace"))


class HostMetrics(ServiceMetrics):
    """Prometheus metrics of one host, including those of its slots' child processes."""

    def __init__(self) -> None:
        super().__init__("host")
        self._counters = HostCounters()
        self.add_callback(self._collect_counters)

    def set_counters(self, counters: HostCounters) -> None:
        """Export the values of these counters from now on."""
        self._counters = counters

    def _collect_counters(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self.full_name("leases"), "Leases given", value=self._counters.leases)
        runs = CounterMetricFamily(self.full_name("runs"), "Ended runs, by outcome", labels=["end"])
        for outcome in RUN_OUTCOMES:
            runs.add_metric([outcome], self._counters.runs[outcome])
        yield runs
