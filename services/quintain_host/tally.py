"""What a host has done so far, in plain numbers: a host needs no library to count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

#: What is counted: a lease is given, a lease is over, and how a run ended.
LEASE: Final = "lease"
OVER: Final = "over"
ENDS: Final = ("ended", "failed", "cancelled")


def unheard(_: str) -> None:
    """For a `Tally` of which nobody else keeps count."""


@dataclass(slots=True)
class Tally:
    """Leases given, how many are held, and runs by how they ended: ``ended``, ``failed`` (the target raised) or
    ``cancelled``. ``told`` hears of each as it is counted."""

    leases: int = 0
    held: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    told: Callable[[str], None] = unheard

    def count(self, what: str) -> None:
        """Count `LEASE`, `OVER`, or one of `ENDS`."""
        match what:
            case "lease":
                self.leases += 1
                self.held += 1
            case "over":
                self.held -= 1
            case end:
                self.runs[end] += 1
        self.told(what)
