"""What is logged of a failure that lasts: one line when it begins, one a minute, and one when it ends."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from quintain.errors import QuintainError

#: The interval of the lines about a failure that lasts, in seconds.
TELL_SECONDS = 60.0


class Connection(Protocol):
    """What the failing operation needs: a bus."""

    @property
    def connected(self) -> bool:
        """Whether it is open."""


class FailureLog:
    """Logs what fails again and again, with the error of the last time.

    ``begun`` and ``ended`` say what fails, and what works again. While ``bus`` is not connected nothing is logged: the
    bus logs that itself.
    """

    def __init__(self, log: logging.Logger, begun: str, ended: str, bus: Connection | None = None) -> None:
        self._log, self._begun, self._ended, self._bus = log, begun, ended, bus
        self._failing = set[object]()
        self._told_at = dict[type[QuintainError], float]()
        self._began_at = 0.0

    def failed(self, error: QuintainError, subject: object = None) -> None:
        """Note that ``subject`` has failed, for the first time or again; an error of another kind is told at once."""
        if self._bus is not None and not self._bus.connected:
            return
        now = time.monotonic()
        if not self._failing:
            self._began_at = now
        self._failing.add(subject)
        if now - self._told_at.get(type(error), now - TELL_SECONDS) < TELL_SECONDS:
            return
        self._told_at[type(error)] = now
        seconds = now - self._began_at
        self._log.warning("%s%s: %s", self._begun, f", for {seconds:.0f} s" if seconds >= 1 else "", error.message)

    def worked(self, subject: object = None) -> None:
        """Note that ``subject`` works, and log the end of the failure if nothing fails any more."""
        if subject in self._failing:
            self.forget(subject)
            if not self._failing:
                self._log.warning("%s after %.1f s", self._ended, time.monotonic() - self._began_at)

    def forget(self, subject: object) -> None:
        """Note that ``subject`` is no longer tried."""
        self._failing.discard(subject)
        if not self._failing:
            self._told_at.clear()
