"""Finds targets whose provider is down, and says when one call may be tried again. No I/O, no clock.

A target that fails `FAILURES_BEFORE_OUTAGE` times in a row, timeouts among them, is out: nothing new is tried but one
call after 5, 10, 20 … s. Where all targets of a key are out, so is the provider, and they share one such call. The
first answer ends the outage of its target; that of a whole key lets one call of each other target be tried at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: So many failures in a row, without an answer between them, are an outage.
FAILURES_BEFORE_OUTAGE = 5

#: Seconds from the outage's start to the first probe, doubled with each further one, and the most.
FIRST_PROBE_SECONDS, MAX_PROBE_SECONDS = 5.0, 120.0


@dataclass(slots=True)
class _Health:
    """The failures of one target in a row, and if it is out, since when and when it is tried next."""

    failures: int = 0
    out_since: float | None = None
    next_probe_at: float = -math.inf
    probe_seconds: float = FIRST_PROBE_SECONDS
    is_probed: bool = False


class Outages:
    """Which targets of one key are out."""

    def __init__(self) -> None:
        self._targets: dict[str, _Health] = {}

    @property
    def out_since(self) -> float | None:
        """Since when all targets of the key are out; None where one is not."""
        since = [health.out_since for health in self._targets.values()]
        return max((each for each in since if each is not None), default=None) if None not in since else None

    def out_targets(self) -> dict[str, float]:
        """The targets that are out, each with the time at which it is tried next."""
        return {name: health.next_probe_at for name, health in self._targets.items() if health.out_since is not None}

    def save(self, now: float) -> dict[str, list[float] | None]:
        """Return each target, for another service; of those that are out since when, the next try and its interval."""
        return {
            name: None
            if health.out_since is None
            else [health.out_since - now, health.next_probe_at - now, health.probe_seconds]
            for name, health in self._targets.items()
        }

    def restore(self, saved_at: float, saved: dict[str, list[float] | None]) -> None:
        """Go on from what another service saved at this time."""
        for name, out in saved.items():
            self._targets[name] = _Health() if out is None else _Health(0, saved_at + out[0], saved_at + out[1], out[2])

    def wait_seconds(self, now: float, target: str) -> float:
        """How long until a call to this target may start; infinite while one is tried."""
        health = self._targets.get(target)
        if health is None or health.out_since is None:
            return 0.0
        return math.inf if health.is_probed else max(0.0, health.next_probe_at - now)

    def started(self, now: float, target: str) -> None:
        """Note that a call starts; at a target that is out it is the probe, of its neighbours too if all are out."""
        health = self._targets.setdefault(target, _Health())
        if health.out_since is None:
            return
        health.is_probed = True
        for other in self._targets.values() if self.out_since is not None else ():
            if other is not health:
                other.next_probe_at = max(other.next_probe_at, now + health.probe_seconds)

    def answered(self, now: float, target: str) -> bool:
        """Note an answer of the target, and return whether it ends an outage of the whole key."""
        is_end = self.out_since is not None
        self._targets[target] = _Health()
        for other in self._targets.values() if is_end else ():
            other.next_probe_at = min(other.next_probe_at, now)
        return is_end

    def failed(self, now: float, target: str, granted_at: float) -> None:
        """Note a failure of a call to the target, which was granted at this time."""
        health = self._targets.setdefault(target, _Health())
        health.failures += 1
        if health.out_since is None:
            if health.failures >= FAILURES_BEFORE_OUTAGE:
                health.out_since, health.next_probe_at = now, now + health.probe_seconds
        elif granted_at >= health.out_since:
            health.is_probed = False
            health.probe_seconds = min(MAX_PROBE_SECONDS, 2 * health.probe_seconds)
            health.next_probe_at = now + health.probe_seconds

    def ended(self, target: str) -> None:
        """Note that a call to the target ended and shows nothing: where it was the probe, another one may be tried."""
        health = self._targets.get(target)
        if health is not None:
            health.is_probed = False
