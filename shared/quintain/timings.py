"""The timings of the protocol and of failure handling, in one frozen value that composition roots pass down.

The services of one fleet must agree on them: a metadata service that expects a renewal every 3 s ends the lease of a
worker that renews every 20 s. The defaults are the promised figures (``docs/protocol.md``). What is here is what a
worker, a metadata service or a host waits for when something is lost, repeated or gone; a wait that belongs to one
module alone stays a constant of that module.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from quintain.errors import ConfigError

#: A lease is at least this many times as long as the interval of its renewal.
RENEWALS_PER_LEASE = 5

#: Rounding errors of a scaled value must not count as a broken rule.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """All timings of one fleet, in seconds. Raises `ConfigError` for values that contradict each other.

    Example: ``Timings().scaled(0.2)`` has a lease of 3 s and everything else a fifth as long.
    """

    #: How long a worker's lease runs without a renewal; then others take over the calls that the worker holds.
    lease_seconds: float = 15.0
    #: How often a worker renews its lease.
    heartbeat_seconds: float = 3.0
    #: How long a registration may take before the worker registers again.
    register_timeout_seconds: float = 10.0
    #: The pause before a worker whose registration failed registers again.
    register_pause_seconds: float = 0.5
    #: A worker repeats an admit that was not answered for this long.
    admit_repeat_seconds: float = 3.0
    #: A worker that hears nothing of the ledger for this long answers its call with ``budget_unavailable``.
    ledger_silence_seconds: float = 30.0
    #: The pause before a worker publishes a settle or a reply again that the broker did not take.
    publish_pause_seconds: float = 0.5
    #: The pause before a worker tries again to consume a target's queue that the broker refused to it.
    consume_pause_seconds: float = 1.0
    #: How long after its deadline a call still waits for an answer that may be on its way.
    deadline_grace_seconds: float = 1.0
    #: A provider that asks for a longer wait than this pauses its target for the whole fleet.
    shared_pause_seconds: float = 2.0
    #: A worker holds a call for this long at most while its target is paused, and gives it back otherwise.
    held_call_seconds: float = 60.0

    #: How often the metadata service ends what time has ended, and tries again what the ledger refused.
    sweep_seconds: float = 1.0
    #: After a gap of this length in its own running the metadata service treats no lease as lapsed for one lease.
    gap_seconds: float = 5.0
    #: A ledger outage is over when the ledger has refused nothing for this long.
    ledger_quiet_seconds: float = 3.0
    #: The pause before the metadata service routes a request again that the broker did not take.
    route_pause_seconds: float = 0.5
    #: The pause before the metadata service asks the ledger again about a dead-lettered call.
    dead_letter_pause_seconds: float = 1.0

    #: How often a controller and the host of its target tell each other that they live.
    host_heartbeat_seconds: float = 2.0
    #: Whichever of the two hears nothing for this long takes the other for lost.
    host_lost_seconds: float = 9.0
    #: A controller repeats a question to a host that was not answered for this long.
    host_repeat_seconds: float = 5.0
    #: A host sends again what was not acknowledged for this long.
    host_resend_seconds: float = 3.0
    #: How long a host that stops waits for the first question to a lease that was just given.
    host_first_question_seconds: float = 1.0
    #: The pause of a host's slot after a lease or the broker failed.
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
        if self.ledger_silence_seconds <= self.admit_repeat_seconds:
            raise ConfigError("ledger_silence_seconds must be more than admit_repeat_seconds")
        if self.host_lost_seconds <= 2 * self.host_heartbeat_seconds:
            raise ConfigError("host_lost_seconds must be more than two host heartbeats")

    @property
    def lease_ms(self) -> int:
        """The lease in whole milliseconds, as the ledger counts time."""
        return int(self.lease_seconds * 1000)

    @property
    def held_admit_seconds(self) -> float:
        """The metadata service forgets an admit that must wait when its worker has not repeated it for this long."""
        return self.lease_seconds

    def scaled(self, factor: float) -> Timings:
        """The same timings, each multiplied by this factor."""
        values = {field.name: getattr(self, field.name) * factor for field in dataclasses.fields(self)}
        return Timings(**values)


#: The promised figures.
DEFAULT_TIMINGS = Timings()
