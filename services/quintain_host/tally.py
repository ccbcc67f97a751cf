"""What a host has done so far, in plain numbers: a host needs no library to count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Leases given, and runs by how they ended: ``ended``, ``failed`` (the target raised) or ``cancelled``."""

    leases: int = 0
    runs: Counter[str] = field(default_factory=Counter)
