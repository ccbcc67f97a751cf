"""Counters of a host: leases given, leases active, runs by outcome. Needs no metrics library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

#: What is counted: a lease is given, a lease is over, and how a run ended.
LEASE_GIVEN: Final = "lease"
LEASE_ENDED: Final = "over"
RUN_OUTCOMES: Final = ("ended", "failed", "cancelled")


def ignore_count(_: str) -> None:
    """For a `HostCounters` of which nobody else keeps count."""


@dataclass(slots=True)
class HostCounters:
    """Leases given, how many are held, and runs by how they ended: ``ended``, ``failed`` (the target raised) or
    ``cancelled``. ``on_count`` hears of each as it is counted."""

    leases: int = 0
    active_leases: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    on_count: Callable[[str], None] = ignore_count

    def count(self, event: str) -> None:
        """Count `LEASE_GIVEN`, `LEASE_ENDED`, or one of `RUN_OUTCOMES`."""
        match event:
            case "lease":
                self.leases += 1
                self.active_leases += 1
            case "over":
                self.active_leases -= 1
            case end:
                self.runs[end] += 1
        self.on_count(event)
