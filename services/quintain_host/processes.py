"""Runs each lease slot in its own process.

Targets that hold the GIL then use all cores, and a crash ends only one slot. Each child process is a host with
one slot that consumes the same queue. It reports its readiness and its counts to the parent, which restarts a
child that dies, with exponential backoff. A child exits when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence

from quintain.process import end_process, start_process
from quintain.program import CannotStart, Program
from quintain_host.counters import LEASE_ENDED, HostCounters
from quintain_host.ipc import READY, make_pipe, read_ipc

log = logging.getLogger(__name__)

INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

#: A child that ran longer than this resets the backoff, in seconds.
STABLE_SECONDS = 10.0

#: Command-line option that gives a child the write end of its pipe to the parent.
PARENT_FD_OPTION = "--parent-fd"


class SlotProcesses:
    """Runs ``count`` child processes of one command and restarts those that exit. ``env`` is their environment."""

    def __init__(self, command: Sequence[str], count: int, env: Mapping[str, str]) -> None:
        self._command, self._count, self._env = list(command), count, env
        self._processes: set[Process] = set()
        self._supervisor_tasks: list[asyncio.Task[None]] = []
        self._ready_events = [asyncio.Event() for _ in range(count)]
        #: Counts of all children, including those that have exited.
        self.counters = HostCounters()

    def start(self) -> None:
        """Start all child processes and their supervision."""
        loop = asyncio.get_running_loop()
        self._supervisor_tasks = [
            loop.create_task(self._supervise(ready_event), name=f"child {number}")
            for number, ready_event in enumerate(self._ready_events)
        ]

    async def wait_ready(self) -> None:
        """Wait until every child consumes lease requests."""
        await asyncio.gather(*(ready_event.wait() for ready_event in self._ready_events))

    @property
    def pids(self) -> list[int]:
        """The process ids of the children that run now, sorted."""
        return sorted(child.pid for child in self._processes)

    async def check(self) -> str | None:
        """Return why the host is not ready, or None: every child must have reported its readiness."""
        not_ready_count = sum(not ready_event.is_set() for ready_event in self._ready_events)
        return f"{not_ready_count} of {self._count} slots' processes are not ready" if not_ready_count else None

    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM to every child, and kill those that still run after ``grace_seconds``."""
        for task in self._supervisor_tasks:
            task.cancel()
        await asyncio.gather(*self._supervisor_tasks, return_exceptions=True)
        children = list(self._processes)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        ended = await asyncio.gather(*(end_process(child, grace_seconds) for child in children))
        for child, ended_in_time in zip(children, ended, strict=True):
            if not ended_in_time:
                log.error("The slot process %d did not exit within %.0f s and was killed", child.pid, grace_seconds)

    async def _supervise(self, ready_event: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        backoff_seconds = INITIAL_BACKOFF_SECONDS
        while True:
            started_at = loop.time()
            reason = await self._run_process(ready_event)
            backoff_seconds = (
                INITIAL_BACKOFF_SECONDS
                if loop.time() - started_at > STABLE_SECONDS
                else min(backoff_seconds * 2, MAX_BACKOFF_SECONDS)
            )
            log.error("A slot process %s; it is restarted in %.1f s", reason, backoff_seconds)
            await asyncio.sleep(backoff_seconds)

    async def _run_process(self, ready_event: asyncio.Event) -> str:
        """Run one child from its start to its exit; returns how it ended, for the log."""
        counters = HostCounters(on_count=self.counters.count)

        def on_message(message: str) -> None:
            if message == READY:
                ready_event.set()
            else:
                counters.count(message)

        read_fd, write_fd = make_pipe()
        try:
            with read_ipc(read_fd, on_message):
                try:
                    program = Program(argv=[*self._command, PARENT_FD_OPTION, str(write_fd)], env=self._env)
                    child = await start_process(program, stdin=PIPE, stdout=None, pass_fds=[write_fd])
                except CannotStart as error:
                    return f"cannot be started ({error.reason})"
                finally:
                    os.close(write_fd)
                self._processes.add(child)
                exit_code = await child.wait()
                await end_process(child)
        finally:
            ready_event.clear()
            # The leases of the child ended with it.
            for _ in range(counters.active_leases):
                counters.count(LEASE_ENDED)
        self._processes.discard(child)
        return f"ended with {exit_code}"


async def wait_parent_exit() -> None:
    """In a child process: wait until the parent exits, which closes this process's standard input."""
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()

    def on_readable() -> None:
        if not os.read(0, 1):
            exited.set()

    loop.add_reader(0, on_readable)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(0)
