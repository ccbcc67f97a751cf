"""The timings of services in tests: the promised ones, scaled, so that nothing waits for a lease of 15 s."""

from __future__ import annotations

import dataclasses

from quintain.settings import TEST_LEASE_VARIABLE
from quintain.timings import DEFAULT_TIMINGS, Timings

#: For services in the test's own process: a lease of 0.5 s, renewed every 0.07 s.
QUICK = DEFAULT_TIMINGS.scaled(0.5 / DEFAULT_TIMINGS.lease_seconds)

#: For workers and metadata services that are real processes: a lease of 3 s, renewed every 0.4 s, so that no living
#: process is taken for dead on a busy machine.
PROCESS_LEASE_SECONDS = 3.0


def timings(**seconds: float) -> Timings:
    """The promised timings with some of them replaced."""
    return dataclasses.replace(DEFAULT_TIMINGS, **seconds)


def lease_variable(seconds: float = PROCESS_LEASE_SECONDS) -> dict[str, str]:
    """What the environment of a process says that is to have a lease of this length."""
    return {TEST_LEASE_VARIABLE: f"{seconds:g}"}
