"""Runs each lease slot in a process of its own, and answers for these processes: whether they run, and how they ended.

Targets that hold the GIL then use all cores, and a crash ends only one slot. Each child process is a host with
one slot that consumes the same queue. It reports its readiness and its counts to the parent, which restarts a
child that dies, with exponential backoff, and tells the watchers of its lease. A child that wants to be replaced is
replaced at once. A child exits when the pipe to its parent is closed, and no process that it started outlives it.

Watchers are answered in the host's parent process, so that a target that holds its interpreter's lock does not delay
the answers. A host with threads answers for itself; its queue ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from asyncio.subprocess import Process
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from quintain.bus.base import Bus, Consumer, Delivery, Envelope
from quintain.contracts.credentials import mask_tokens
from quintain.contracts.remote_target import ProcessStatus, WatchProcess
from quintain.errors import BadRequest, BusError
from quintain.programs.processes import ProcessMark, end_process, start_process
from quintain.programs.program import CannotStart, OutputTail, Program, program_environment, read_pipe
from quintain.rpc.server import send_reply
from quintain.topology import REPLY, supervisor_topology
from quintain_host.counters import LEASE_ENDED, READY, HostCounters, make_pipe, read_ipc

log = logging.getLogger(__name__)

PREFETCH = 64

#: How many watchers of one process are told of its end: those that asked last. A process has one lease at a time.
MAX_WATCHERS = 8

#: How many ended processes are remembered, for a watcher that asks later.
MAX_ENDED = 256


@dataclass(frozen=True, slots=True)
class Supervision:
    """Who answers for a slot's process: the routing key of its supervisor, and the id of the process there."""

    supervisor_key: str
    process_id: str


class ProcessSupervisor:
    """Answers controllers that watch the processes of one host, and tells them when one ends."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._topology = supervisor_topology(secrets.token_urlsafe(24))
        self.key = self._topology.bindings[0].key
        self._consumer: Consumer | None = None
        #: Of each running process: the reply queue of each watcher, by correlation id.
        self._watchers: dict[str, OrderedDict[str, str]] = {}
        self._ended: OrderedDict[str, ProcessStatus] = OrderedDict()

    async def open(self) -> None:
        """Declare the queue, and answer from now on."""
        await self._bus.declare(self._topology)
        self._consumer = await self._bus.consume(self._topology.queues[0], self._on_request, prefetch=PREFETCH)

    async def close(self) -> None:
        """Answer no more. The queue ends here, or with the connection."""
        if self._consumer is not None:
            await self._consumer.drain(0)
            for queue in self._topology.queues:
                try:
                    await self._bus.delete(queue)
                except BusError as error:
                    log.info("The supervisor's queue ends with its connection: %s", error.message)

    def add_process(self) -> Supervision:
        """Answer for one more process, which is about to start."""
        supervision = Supervision(self.key, secrets.token_urlsafe(12))
        self._watchers[supervision.process_id] = OrderedDict()
        return supervision

    async def end_process(self, process_id: str, ended: str, log_tail: str) -> None:
        """Tell the watchers of a process how it ended. Raises nothing but a cancellation."""
        status = ProcessStatus(ended=ended, log_tail=log_tail)
        self._ended[process_id] = status
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        for correlation_id, reply_to in self._watchers.pop(process_id, OrderedDict()).items():
            envelope = Envelope(body=status.to_wire(), type="result", correlation_id=correlation_id, persistent=False)
            try:
                await self._bus.publish(REPLY, reply_to, envelope)
            except BusError as error:
                log.info("A watcher of process %s has gone: %s", process_id, error.message)

    async def _on_request(self, request: Delivery) -> None:
        try:
            await self._answer(request)
        except BusError as error:
            log.info("A watcher was not answered; it asks again: %s", error.message)
        finally:
            await request.ack()

    async def _answer(self, request: Delivery) -> None:
        try:
            process_id = WatchProcess.from_wire(request.body).process_id
        except BadRequest as bad_request:
            await send_reply(self._bus, request, bad_request)
            return
        watchers = self._watchers.get(process_id)
        if watchers is not None and request.reply_to and request.correlation_id:
            watchers[request.correlation_id] = request.reply_to
            watchers.move_to_end(request.correlation_id)
            if len(watchers) > MAX_WATCHERS:
                watchers.popitem(last=False)
        status = ProcessStatus() if watchers is not None else self._ended.get(process_id)
        await send_reply(self._bus, request, status or ProcessStatus(is_known=False))


INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

#: A child that ran longer than this resets the backoff, in seconds.
STABLE_SECONDS = 10.0

#: The exit code of a process that wants to be replaced: a thread of the target does not end, or a lease left something.
REPLACE_EXIT_CODE = 70

#: Command-line option that gives a child the write end of its pipe to the parent.
PARENT_FD_OPTION = "--parent-fd"

#: Command-line options that give a child the routing key of its supervisor, and its own id there.
SUPERVISOR_OPTION, PROCESS_ID_OPTION = "--supervisor-key", "--process-id"

#: How much of the end of a child's standard error its watchers are sent, in bytes.
LOG_TAIL_BYTES = 2048

#: How long the ends of the children may take to be told when all are stopped, in seconds.
STOP_SECONDS = 2.0

#: How long after the end of a child the rest of its standard error is waited for, in seconds.
LOG_TAIL_SECONDS = 0.2

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

    What they write to their standard error goes to this process's own, too.
    """

    def __init__(
        self, command: Sequence[str], count: int, env: Mapping[str, str], supervisor: ProcessSupervisor
    ) -> None:
        self._command, self._count, self._env, self._supervisor = list(command), count, env, supervisor
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
            # They tell the watchers of their children.
            _, unfinished = await asyncio.wait(self._supervisor_tasks, timeout=STOP_SECONDS)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
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
        counters = HostCounters(on_count=self.counters.count)

        def on_message(message: str) -> None:
            if message == READY:
                ready_event.set()
            else:
                counters.count(message)

        read_fd, write_fd = make_pipe()
        try:
            with read_ipc(read_fd, on_message):
                ended = await self._run_supervised(write_fd)
                is_replaced = ready_event.is_set() and ended == describe_exit(REPLACE_EXIT_CODE)
                return None if is_replaced else ended
        finally:
            ready_event.clear()
            # The leases of the child ended with it.
            for _ in range(counters.active_leases):
                counters.count(LEASE_ENDED)

    async def _run_supervised(self, write_fd: int) -> str:
        """Run one child, and tell its supervisor's watchers how it ended; closes the pipe's end here."""
        supervision = self._supervisor.add_process()
        options = [PARENT_FD_OPTION, str(write_fd), SUPERVISOR_OPTION, supervision.supervisor_key]
        mark = ProcessMark(self._env)
        program = Program(
            argv=[*self._command, *options, PROCESS_ID_OPTION, supervision.process_id],
            env={**self._env, **mark.variables},
        )
        log_output, ended = _LogOutput(LOG_TAIL_BYTES), "was stopped"
        try:
            async with read_pipe(log_output) as stderr_end:
                try:
                    with stderr_end:
                        child = await start_process(
                            program, stdout=None, stderr=stderr_end, pass_fds=[write_fd], mark=mark
                        )
                except CannotStart as error:
                    ended = f"cannot be started ({error.reason})"
                    return ended
                finally:
                    os.close(write_fd)
                self._processes.add(child)
                if self._stopping.is_set():
                    child.terminate()
                ended = describe_exit(await child.wait())
                await end_process(child)
                self._processes.discard(child)
                await asyncio.wait([log_output.ended], timeout=LOG_TAIL_SECONDS)
        finally:
            mark.kill()
            await self._supervisor.end_process(supervision.process_id, ended, log_output.text)
        return ended


class _LogOutput(OutputTail):
    """Passes a child's standard error on, and keeps its end."""

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol.data_received`."""
        super().data_received(data)
        sys.stderr.buffer.write(data)
        sys.stderr.flush()

    @property
    def text(self) -> str:
        """The end of the output, without tokens."""
        return mask_tokens(self.data.decode(errors="replace").strip())


def describe_exit(exit_code: int) -> str:
    """Say how a process ended; a negative code is the number of a signal."""
    try:
        return f"ended with {exit_code}" + (f" ({signal.Signals(-exit_code).name})" if exit_code < 0 else "")
    except ValueError:
        return f"ended with {exit_code}"
