"""A process for every slot: targets that hold the GIL scale over cores, and one that crashes takes only itself along.

The parent carries nothing: each child is a host with one slot, and takes its leases from the same queue. It says when
it is ready, and what it counts. A child that dies is started again, with a pause that grows while it keeps dying. A
child ends with its parent: it notices the end of its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence

from quintain.process import CannotStart, Program, end_process, start_process
from quintain_host.said import READY, hearing, way
from quintain_host.tally import OVER, Tally

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
MOST_PAUSE_SECONDS = 30.0

#: A child that lived this long is not one that keeps dying, in seconds.
LIVED_SECONDS = 10.0

#: The option under which a child hears on which file descriptor its parent listens.
CHILD_OPTION = "--parent-fd"


class Children:
    """So many processes of one command, kept running; ``env`` is all their environment."""

    def __init__(self, command: Sequence[str], count: int, env: Mapping[str, str]) -> None:
        self._command, self._count, self._env = list(command), count, env
        self._running: set[Process] = set()
        self._keeping: list[asyncio.Task[None]] = []
        self._ready = [asyncio.Event() for _ in range(count)]
        #: What they have done, those too that have ended since.
        self.tally = Tally()

    def start(self) -> None:
        """Start them all."""
        loop = asyncio.get_running_loop()
        self._keeping = [
            loop.create_task(self._keep(ready), name=f"child {number}") for number, ready in enumerate(self._ready)
        ]

    async def ready(self) -> None:
        """Wait until each of them takes leases."""
        await asyncio.gather(*(ready.wait() for ready in self._ready))

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return sorted(child.pid for child in self._running)

    async def check(self) -> str | None:
        """What keeps it from leasing out: processes that are not ready, or not any more."""
        down = sum(not ready.is_set() for ready in self._ready)
        return f"{down} of {self._count} slots' processes are not ready" if down else None

    async def stop(self, grace_seconds: float) -> None:
        """Ask them all to stop, and end those that outlive the grace."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        children = list(self._running)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        ended = await asyncio.gather(*(end_process(child, grace_seconds) for child in children))
        for child, by_itself in zip(children, ended, strict=True):
            if not by_itself:
                log.error("The process %d of a slot did not end within %.0f s: killed", child.pid, grace_seconds)

    async def _keep(self, ready: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while True:
            began = loop.time()
            end = await self._live(ready)
            pause = FIRST_PAUSE_SECONDS if loop.time() - began > LIVED_SECONDS else min(pause * 2, MOST_PAUSE_SECONDS)
            log.error("A slot's process %s; another one starts in %.1f s", end, pause)
            await asyncio.sleep(pause)

    async def _live(self, ready: asyncio.Event) -> str:
        """One child, from its start to its end; returns how it ended."""
        tally = Tally(told=self.tally.count)

        def hear(word: str) -> None:
            if word == READY:
                ready.set()
            else:
                tally.count(word)

        heard, said = way()
        try:
            with hearing(heard, hear):
                try:
                    program = Program(argv=[*self._command, CHILD_OPTION, str(said)], env=self._env)
                    child = await start_process(program, stdin=PIPE, stdout=None, pass_fds=[said])
                except CannotStart as error:
                    return f"cannot be started ({error.reason})"
                finally:
                    os.close(said)
                self._running.add(child)
                code = await child.wait()
                await end_process(child)
        finally:
            ready.clear()
            # What it held went with it.
            for _ in range(tally.held):
                tally.count(OVER)
        self._running.discard(child)
        return f"ended with {code}"


async def parent_gone() -> None:
    """In a child: wait until the parent has ended, and with it this process's standard input."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()

    def readable() -> None:
        if not os.read(0, 1):
            gone.set()

    loop.add_reader(0, readable)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(0)
