"""Looks at the running fleet: asks a metadata service for its figures, and says what is wrong where none answers."""

from __future__ import annotations

import time

from quintain.client.admin import Admin
from quintain.contracts.fleet_figures import FleetFigures
from quintain.errors import Fault, NoAnswer, Unauthorized

#: How often those who show the fleet ask for it, in seconds.
LOOK_SECONDS = 1.0

#: How far the ledger's clock may be off this machine's before calls expire too early or too late, in seconds.
MAX_SKEW_SECONDS = 10.0

_NO_SERVICE = "No metadata service answers: start one with `quintain serve metadata`"


class FleetLook:
    """The looks of one program at the fleet.

    Example::

        print((await FleetLook(admin).take()).targets)
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._last = FleetFigures()

    async def take(self) -> FleetFigures:
        """Return the figures; those of the last look, with a problem, where no metadata service answers.

        Raises `Unauthorized` for a token that is not the administrator's, and `BusError`.
        """
        try:
            self._last = await self._admin.fleet()
        except Unauthorized:
            raise
        except (NoAnswer, Fault) as error:
            problem = _NO_SERVICE if isinstance(error, NoAnswer) else f"The fleet cannot be read: {error.message}"
            return self._last.with_fields(problems=[problem])
        seconds_ahead = self._last.now / 1000 - time.time()
        if abs(seconds_ahead) <= MAX_SKEW_SECONDS:
            return self._last
        return self._last.with_fields(problems=[*self._last.problems, _clock_problem(seconds_ahead)])


def _clock_problem(seconds_ahead: float) -> str:
    way = "ahead of" if seconds_ahead > 0 else "behind"
    return (
        f"The ledger's clock is {abs(seconds_ahead):.0f} s {way} this machine's: calls expire too early or too late; "
        "run NTP (chrony, systemd-timesyncd) on both"
    )
