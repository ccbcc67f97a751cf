"""Runs each lease slot in a process of its own, and answers for these processes: whether they run, and how they ended.

Targets that hold the GIL then use all cores, and a crash ends only one slot. Each child process is a host with
one slot that consumes the same queue. It reports its readiness, its counts and the driver of its lease to the parent,
which restarts a child that dies, with exponential backoff. A child that wants to be replaced is replaced at once. A
child exits when the pipe to its parent is closed, and no process that it started outlives it.

The parent sends heartbeats to the driver of each child's lease, so that a target that holds its interpreter's lock is
not taken for lost, and tells it when the child has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

from quintain.bus.base import Bus, Envelope
from quintain.bus.failure_log import FailureLog
from quintain.contracts.credentials import mask_secrets
from quintain.contracts.hosting import LEASE_TYPE, HostMessage, LeaseEnded
from quintain.errors import BusError
from quintain.programs.processes import ProcessMark, end_process, is_stopped, start_process
from quintain.programs.program import CannotStart, OutputTail, Program, program_environment, read_pipe, secrets_of
from quintain.runtime.concurrency import cancel_and_wait
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import REPLY
from quintain_host.counters import COUNTED, LEASE_ENDED, READY, HostCounters, IpcReader

log = logging.getLogger(__name__)

INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

#: A child that ran longer than this resets the backoff, in seconds.
STABLE_SECONDS = 10.0

#: The exit code of a process that wants to be replaced: a thread of the target does not end, or a lease left something.
REPLACE_EXIT_CODE = 70

#: Command-line option that gives a child the write end of its pipe to the parent.
PARENT_FD_OPTION = "--parent-fd"

#: How much of the end of a child's standard error its driver is sent, in bytes.
LOG_TAIL_BYTES = 2048

#: How much of a line of a child's output waits for its end, in bytes.
_MAX_LINE_BYTES = 65_536

#: How long the ends of the children may take to be told when all are stopped, in seconds.
STOP_SECONDS = 2.0

#: How long after the end of a child the rest of its pipes is waited for, in seconds.
PIPE_END_SECONDS = 0.2

#: What a slot's process needs of the host's environment itself: to reach the broker, to log and to trace.
HOST_VARIABLES: Final = (
    *("QUINTAIN_BROKER_URL", "QUINTAIN_BROKER_URL_FILE", "QUINTAIN_GATEWAY_URL", "QUINTAIN_LOG_FORMAT"),
    *("QUINTAIN_LOG_LEVEL", "QUINTAIN_TRACE_CONTENT", "QUINTAIN_TEST_LEASE_SECONDS"),
)
HOST_PREFIXES: Final = ("OTEL_",)


def slot_environment(env: Mapping[str, str], env_from: Iterable[str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a slot's process: that of a program, and what the host in it needs.

    ``env_from`` lists further variables of ``env``, ``own`` has others with their values. Raises `ConfigError`.
    """
    needed = {name: value for name, value in env.items() if name in HOST_VARIABLES or name.startswith(HOST_PREFIXES)}
    return {**needed, **program_environment(env, env_from=env_from, own=own)}


class SlotProcesses:
    """Runs ``count`` child processes of one command and restarts those that exit. ``env`` is their environment.

    What they write goes to this process's own standard output and error, too, with their secrets masked.
    """

    def __init__(
        self, bus: Bus, command: Sequence[str], count: int, env: Mapping[str, str], timings: Timings = DEFAULT_TIMINGS
    ) -> None:
        self._bus, self._command, self._count, self._env, self._timings = bus, list(command), count, env, timings
        self._processes: set[Process] = set()
        self._stopping = asyncio.Event()
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

    async def check(self) -> str | None:
        """Return why the host is not ready, or None: every child must have reported its readiness."""
        not_ready_count = sum(not ready_event.is_set() for ready_event in self._ready_events)
        return f"{not_ready_count} of {self._count} slots' processes are not ready" if not_ready_count else None

    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM to every child, and kill those that still run after ``grace_seconds``."""
        self._stopping.set()
        children = list(self._processes)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        ended = await asyncio.gather(*(end_process(child, grace_seconds) for child in children))
        for child, ended_in_time in zip(children, ended, strict=True):
            if not ended_in_time:
                log.error("The slot process %d did not exit within %.0f s and was killed", child.pid, grace_seconds)
        if self._supervisor_tasks:
            # They tell the drivers of their children.
            _, unfinished = await asyncio.wait(self._supervisor_tasks, timeout=STOP_SECONDS)
            await cancel_and_wait(*unfinished)
        for child in list(self._processes):
            await end_process(child)

    async def _supervise(self, ready_event: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        backoff_seconds = INITIAL_BACKOFF_SECONDS
        while not self._stopping.is_set():
            started_at = loop.time()
            reason = await self._run_process(ready_event)
            if reason is None:
                log.info("A slot process is replaced")
                continue
            backoff_seconds = (
                INITIAL_BACKOFF_SECONDS
                if loop.time() - started_at > STABLE_SECONDS
                else min(backoff_seconds * 2, MAX_BACKOFF_SECONDS)
            )
            if not self._stopping.is_set():
                log.error("A slot process %s; it is restarted in %.1f s", reason, backoff_seconds)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(backoff_seconds):
                        await self._stopping.wait()

    async def _run_process(self, ready_event: asyncio.Event) -> str | None:
        """Run one child from its start to its exit; returns how it ended, or None if it wants to be replaced."""
        counters, driver = HostCounters(on_count=self.counters.count), _Driver(self._bus, self._timings)

        def on_message(message: str) -> None:
            if message == READY:
                ready_event.set()
            elif message in COUNTED:
                counters.count(message)
            else:
                driver.set_address(message)

        beating = asyncio.create_task(driver.send_heartbeats())
        try:
            ended, log_tail = await self._run_child(IpcReader(on_message))
            await driver.send(LeaseEnded(reason=f"its process {ended}", log_tail=log_tail))
            return None if ready_event.is_set() and ended == describe_exit(REPLACE_EXIT_CODE) else ended
        finally:
            beating.cancel()
            ready_event.clear()
            # The leases of the child ended with it.
            for _ in range(counters.active_leases):
                counters.count(LEASE_ENDED)

    async def _run_child(self, messages: IpcReader) -> tuple[str, str]:
        """Run one child; returns how it ended, and the end of its standard error."""
        mark, secrets = ProcessMark(self._env), secrets_of(self._env)
        log_output, output = _PassedOutput(sys.stderr, secrets), _PassedOutput(sys.stdout, secrets)
        try:
            async with (
                read_pipe(messages) as messages_end,
                read_pipe(log_output) as stderr_end,
                read_pipe(output) as stdout_end,
            ):
                write_fd = messages_end.fileno()
                argv = [*self._command, PARENT_FD_OPTION, str(write_fd)]
                program = Program(argv=argv, env={**self._env, **mark.variables})
                try:
                    with messages_end, stderr_end, stdout_end:
                        child = await start_process(
                            program, stdout=stdout_end, stderr=stderr_end, pass_fds=[write_fd], mark=mark
                        )
                except CannotStart as error:
                    return f"cannot be started ({error.reason})", ""
                self._processes.add(child)
                if self._stopping.is_set():
                    child.terminate()
                watch = asyncio.create_task(self._kill_stopped(child))
                try:
                    ended = describe_exit(await child.wait())
                finally:
                    was_stopped = not watch.cancel()
                if was_stopped:
                    ended = f"was stopped, and {ended}"
                await end_process(child)
                self._processes.discard(child)
                await asyncio.wait([messages.ended, log_output.ended, output.ended], timeout=PIPE_END_SECONDS)
        finally:
            mark.kill()
        return ended, log_output.text(self._env)

    async def _kill_stopped(self, child: Process) -> None:
        """Kill a child that is stopped for as long as a host may be silent; returns then.

        Its driver hears of this process, and would wait for ever. A child that is busy, or waits, is not stopped.
        """
        looks, interval = 0, self._timings.host_heartbeat_seconds
        # Looks are counted, not time: this process may have been stopped together with the child.
        while looks * interval < self._timings.host_lost_seconds:
            await asyncio.sleep(interval)
            looks = looks + 1 if is_stopped(child.pid) else 0
        log.error("The slot process %d was stopped by a signal (state T), and is killed and replaced", child.pid)
        with contextlib.suppress(ProcessLookupError):
            child.kill()


class _Driver:
    """The driver of a child's lease, as long as it has one: told by its parent what the child may be unable to tell."""

    def __init__(self, bus: Bus, timings: Timings) -> None:
        self._bus, self._timings = bus, timings
        self._lease_id = self._key = ""
        begun, ended = "The driver of a slot's lease is not reached", "The driver of a slot's lease is reached"
        self._not_reached = FailureLog(log, begun, ended, bus)

    def set_address(self, message: str) -> None:
        """Read what `IpcWriter.send_address` wrote; anything else is passed over."""
        with contextlib.suppress(ValueError, TypeError):
            self._lease_id, self._key = map(str, json.loads(message))

    async def send_heartbeats(self) -> None:
        """Send a heartbeat in each interval."""
        while True:
            await asyncio.sleep(self._timings.host_heartbeat_seconds)
            await self.send()

    async def send(self, *items: LeaseEnded) -> None:
        """Send a message beside the numbering of the lease, if there is one. Raises nothing but a cancellation."""
        if not self._key:
            return
        body = HostMessage(number=0, processed=0, items=list(items)).to_wire()
        envelope = Envelope(body=body, type=LEASE_TYPE, correlation_id=self._lease_id, persistent=False)
        try:
            seconds = self._timings.host_heartbeat_seconds
            await self._bus.publish(REPLY, self._key, envelope, timeout_seconds=seconds)
        except BusError as error:
            self._not_reached.failed(error)
        else:
            self._not_reached.worked()


class _PassedOutput(OutputTail):
    """Passes a child's output on with its secrets masked, line by line where it has any, and keeps its end."""

    def __init__(self, stream: TextIO, secrets: tuple[str, ...]) -> None:
        super().__init__(LOG_TAIL_BYTES)
        self._stream, self._secrets = stream, secrets
        self._unwritten = b""

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol.data_received`."""
        super().data_received(data)
        if self._secrets:
            data = self._unwritten + data
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 if len(data) <= _MAX_LINE_BYTES else len(data)
            data, self._unwritten = data[:end], data[end:]
        self._write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implements `asyncio.Protocol.connection_lost`."""
        self._write(self._unwritten)
        super().connection_lost(exc)

    def _write(self, data: bytes) -> None:
        if self._secrets:
            data = mask_secrets(data.decode(errors="surrogateescape"), self._secrets).encode(errors="surrogateescape")
        self._stream.buffer.write(data)
        self._stream.flush()


def describe_exit(exit_code: int) -> str:
    """Say how a process ended; a negative code is the number of a signal."""
    try:
        return f"ended with {exit_code}" + (f" ({signal.Signals(-exit_code).name})" if exit_code < 0 else "")
    except ValueError:
        return f"ended with {exit_code}"
