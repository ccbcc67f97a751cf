"""Counters of a host: leases given, leases active and runs by outcome.

The module does not import the metrics library, so that a host can count without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

#: Events that `HostCounters.count` takes: a lease was given, a lease ended, and the outcome of a run.
LEASE_GIVEN: Final = "lease"
LEASE_ENDED: Final = "over"
RUN_OUTCOMES: Final = ("ended", "failed", "cancelled")


def ignore_count(_: str) -> None:
    """Do nothing: the default of ``HostCounters.on_count``."""


@dataclass(slots=True)
class HostCounters:
    """Counts of one host: leases given, leases active and runs by outcome.

    The outcome of a run is ``ended``, ``failed`` (the target raised) or ``cancelled``. ``on_count`` is called with each
    event after it was counted.
    """

    leases: int = 0
    active_leases: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    on_count: Callable[[str], None] = ignore_count

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
