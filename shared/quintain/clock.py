"""A clock synchronised with the metadata service's, which all deadlines refer to (milliseconds since the epoch)."""

from __future__ import annotations

import time


class Clock:
    """This process's clock, corrected by the ``now`` of the metadata service's replies; in milliseconds."""

    def __init__(self) -> None:
        self._offset_ms = 0.0

    def now_ms(self) -> int:
        """Return the metadata service's time in milliseconds since the epoch (UTC), as far as it is known."""
        return int(time.time() * 1000 + self._offset_ms)

    def synchronize(self, now_ms: int) -> None:
        """Set the offset from a ``now`` (milliseconds since the epoch) that was just received."""
        self._offset_ms = now_ms - time.time() * 1000

    def deadline_ms(self, seconds: float) -> int:
        """Return the time ``seconds`` from now, in milliseconds since the epoch."""
        return int((time.time() + seconds) * 1000 + self._offset_ms)

    def seconds_until(self, deadline_ms: float) -> float:
        """Return the seconds left until a deadline; negative if it has passed."""
        return (deadline_ms - time.time() * 1000 - self._offset_ms) / 1000
