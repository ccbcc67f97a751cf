"""The timings of the protocol and of failure handling, in one frozen value that programs pass down, and the clock.

The services of one fleet must agree on them: a metadata service that expects a renewal every 2 s ends the lease of a
worker that renews every 20 s. The defaults are the documented figures (``docs/protocol/timings.md``). They cover what a
worker, a metadata service or a host waits for when something is lost, repeated or gone; a wait that belongs to one
module alone is a constant of that module. All deadlines refer to the clock of the metadata service.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from quintain.errors import ConfigError

#: A lease is at least this many times as long as the interval of its renewal.
RENEWALS_PER_LEASE = 5

#: Relative tolerance for rounding errors of scaled values.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """All timings of one fleet, in seconds. Raises `ConfigError` for values that contradict each other.

    Example::

        Timings().scaled(0.2)  # a lease of 3 s, and everything else a fifth as long
    """

    #: How long a worker's lease lasts without a renewal; after that other workers take over its calls.
    lease_seconds: float = 15.0
    #: How often a worker renews its lease, and each other service sends its heartbeat.
    heartbeat_seconds: float = 2.0
    #: After how long without a heartbeat a service is shown as silent.
    silent_seconds: float = 5.0
    #: How often a worker looks whether files of its targets have changed; it registers again then.
    file_check_seconds: float = 1.0
    #: Timeout of a registration, before the worker registers again.
    register_timeout_seconds: float = 10.0
    #: Pause before a worker whose registration failed registers again.
    register_pause_seconds: float = 0.5
    #: After how long without a reply a worker sends an admit again.
    admit_repeat_seconds: float = 3.0
    #: After how long without a reply of the ledger a worker answers its call with ``budget_unavailable``.
    ledger_silence_seconds: float = 30.0
    #: Pause before a worker publishes a settle or a reply again that the broker did not accept.
    publish_pause_seconds: float = 0.5
    #: How long after its deadline a call still waits for a reply that may be on its way.
    deadline_grace_seconds: float = 1.0
    #: A provider that asks for a longer wait than this pauses its target for the whole fleet.
    shared_pause_seconds: float = 2.0

    #: How often the metadata service ends expired leases and calls, and retries writes that the ledger refused.
    sweep_seconds: float = 1.0
    #: If the metadata service itself did not run for this long, it expires no lease for one lease length.
    gap_seconds: float = 5.0
    #: A ledger outage is over when the ledger has refused nothing for this long.
    ledger_quiet_seconds: float = 3.0
    #: How long the reply to ``info`` waits for calls that the asker was answered, and that the ledger has as running.
    answered_settle_seconds: float = 1.0
    #: How long a request waits for the registration of its target while no target is registered, or while the metadata
    #: service has run for less than this time.
    unknown_target_seconds: float = 30.0
    #: Pause before the metadata service routes a request again that the broker did not accept.
    route_pause_seconds: float = 0.5
    #: Pause before the metadata service asks the ledger again about a dead-lettered call.
    dead_letter_pause_seconds: float = 1.0

    #: Interval of the heartbeats between a controller and the host of its target.
    host_heartbeat_seconds: float = 2.0
    #: After how long without a message a controller or host considers the other one lost.
    host_lost_seconds: float = 9.0
    #: How long a host that stops waits for the first request to a lease that was just granted.
    host_first_question_seconds: float = 1.0
    #: Pause of a host's slot after a lease or the broker failed.
    host_pause_seconds: float = 1.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise ConfigError(f"{field.name} must be more than 0")
        if self.lease_seconds < RENEWALS_PER_LEASE * self.heartbeat_seconds * (1 - _ROUNDING):
            raise ConfigError(
                f"A lease of {self.lease_seconds:g} s is shorter than {RENEWALS_PER_LEASE} heartbeats of "
                f"{self.heartbeat_seconds:g} s"
            )
        if self.silent_seconds <= 2 * self.heartbeat_seconds:
            raise ConfigError("silent_seconds must be more than two heartbeats")
        if self.ledger_silence_seconds <= self.admit_repeat_seconds:
            raise ConfigError("ledger_silence_seconds must be more than admit_repeat_seconds")
        if self.host_lost_seconds <= 2 * self.host_heartbeat_seconds:
            raise ConfigError("host_lost_seconds must be more than two host heartbeats")

    @property
    def lease_ms(self) -> int:
        """The lease in whole milliseconds, the ledger's unit of time."""
        return int(self.lease_seconds * 1000)

    @property
    def held_admit_seconds(self) -> float:
        """After how long without a repetition by its worker the metadata service forgets an admit that must wait."""
        return self.lease_seconds

    def scaled(self, factor: float) -> Timings:
        """Return the same timings, each multiplied by ``factor``."""
        values = {field.name: getattr(self, field.name) * factor for field in dataclasses.fields(self)}
        return Timings(**values)


#: The documented figures.
DEFAULT_TIMINGS = Timings()


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

    def seconds_until(self, deadline_ms: float) -> float:
        """Return the seconds left until a deadline; negative if it has passed."""
        return (deadline_ms - time.time() * 1000 - self._offset_ms) / 1000
