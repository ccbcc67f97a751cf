"""Bounds how many trials of a target run at once while it is not known that its workers serve the planned
configuration: an answer of another one is charged, and is no row."""

from __future__ import annotations

import asyncio

from quintain_runner.engine.error_limit import MAX_CHANGED_IN_ROW

#: How long the first trials of a target are waited for, in seconds: slow targets are not delayed by more.
FIRST_TRIALS_SECONDS = 5.0


class StartGate:
    """Lets as few trials of one target run at once as park it, until one of them ends with the planned configuration;
    and again after each `target_changed`, until the next such trial.

    At first that lasts ``seconds`` at most; 0 switches it off, for a target without a known configuration.
    """

    def __init__(self, seconds: float = FIRST_TRIALS_SECONDS) -> None:
        self._opens_at: float | None = asyncio.get_running_loop().time() + seconds
        self._is_open = not seconds
        self._running_count = 0
        self._ended = asyncio.Event()

    async def enter(self) -> None:
        """Wait until another trial may begin, and count it."""
        while not self._is_open and self._running_count >= MAX_CHANGED_IN_ROW:
            self._ended.clear()
            try:
                async with asyncio.timeout_at(self._opens_at):
                    await self._ended.wait()
            except TimeoutError:
                self._is_open = True
        self._running_count += 1

    def leave(self, *, is_changed: bool) -> None:
        """Count out a trial; ``is_changed`` says that another configuration answered."""
        self._running_count -= 1
        self._is_open = not is_changed
        if is_changed:
            self._opens_at = None
        self._ended.set()
