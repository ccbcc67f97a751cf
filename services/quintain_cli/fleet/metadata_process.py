"""Runs the metadata service of a run in a process of its own, and restarts it when it exits.

A run with many calls uses it so that the ledger has a CPU core to itself (``docs/decisions/0013``). The process
reaches this process's in-memory broker over a socket pair. Messages that it had received and not acknowledged are
redelivered to its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from quintain.bus.memory import MemoryBroker
from quintain.bus.socketpair import SocketpairBroker
from quintain.errors import QuintainError
from quintain.process import end_process, start_process
from quintain.program import CannotStart, Program
from quintain.secret_files import without_variables
from quintain_metadata import StartupStatus

log = logging.getLogger(__name__)

#: How long the process may take to exit after its socket is closed, before it is killed, in seconds.
STOP_TIMEOUT_SECONDS = 15.0

#: The delay before a process is started again; it doubles from the first to the second, in seconds.
INITIAL_RESTART_SECONDS, MAX_RESTART_SECONDS = 0.2, 15.0

#: Variables that only the metadata process gets.
_LEDGER_URL_VARIABLE, _ADMIN_TOKEN_VARIABLE = "QUINTAIN_LEDGER_URL", "QUINTAIN_ADMIN_TOKEN"


@dataclass(frozen=True, slots=True)
class _ServedProcess:
    """A metadata process, its connection to the in-memory broker, and the task that serves the connection."""

    process: Process
    pipe_broker: SocketpairBroker
    pipe_task: asyncio.Task[None]

    async def stop(self) -> None:
        """Close the socket, on which the process finishes its work and exits; kill it after `STOP_TIMEOUT_SECONDS`."""
        self.pipe_broker.disconnect()
        await self.pipe_task
        await end_process(self.process, STOP_TIMEOUT_SECONDS)


@contextlib.asynccontextmanager
async def run_metadata_process(
    broker: MemoryBroker, ledger_url: str, admin_token: str, env: Mapping[str, str]
) -> AsyncIterator[None]:
    """Run the metadata service in its own process, connected to this broker.

    Its environment is ``env`` with the ledger's URL and the admin token. Raises `ConfigError` or `BudgetUnavailable`
    if the ledger cannot be opened, and `QuintainError` if the process does not start.
    """
    env = {
        **without_variables(env, {_LEDGER_URL_VARIABLE, _ADMIN_TOKEN_VARIABLE}),
        _LEDGER_URL_VARIABLE: ledger_url,
        _ADMIN_TOKEN_VARIABLE: admin_token,
    }
    supervisor = _ProcessSupervisor(broker, env)
    await supervisor.start()
    try:
        yield
    finally:
        await supervisor.stop()


class _ProcessSupervisor:
    """Keeps one metadata process running."""

    def __init__(self, broker: MemoryBroker, env: Mapping[str, str]) -> None:
        self._broker, self._env = broker, env
        self._current: _ServedProcess | None = None
        self._supervise_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises the error that keeps it from starting."""
        self._current = await _start_served_process(self._broker, self._env)
        self._supervise_task = asyncio.get_running_loop().create_task(
            self._supervise(self._current), name="metadata-process"
        )

    async def stop(self) -> None:
        """Stop the process and do not restart it."""
        if self._supervise_task is not None:
            self._supervise_task.cancel()
            await asyncio.gather(self._supervise_task, return_exceptions=True)
        if self._current is not None:
            await self._current.stop()

    async def _supervise(self, current: _ServedProcess) -> None:
        while True:
            exit_code = await current.process.wait()
            await current.stop()
            log.warning("The metadata service's process exited with %d; starting another one", exit_code)
            self._current = current = await self._restart()

    async def _restart(self) -> _ServedProcess:
        delay_seconds = INITIAL_RESTART_SECONDS
        while True:
            await asyncio.sleep(delay_seconds)
            try:
                return await _start_served_process(self._broker, self._env)
            except QuintainError as error:
                log.error("The metadata service cannot be restarted yet: %s", error.message)
            delay_seconds = min(2 * delay_seconds, MAX_RESTART_SECONDS)


async def _start_served_process(broker: MemoryBroker, env: Mapping[str, str]) -> _ServedProcess:
    parent_socket, child_socket = socket.socketpair()
    with child_socket:
        reader, writer = await asyncio.open_connection(sock=parent_socket)
        try:
            process = await _spawn(child_socket, env)
        except BaseException:
            writer.close()
            raise
    pipe_broker = SocketpairBroker(broker.connect(), reader, writer)
    pipe_task = asyncio.get_running_loop().create_task(pipe_broker.serve(), name="metadata-pipe")
    served = _ServedProcess(process, pipe_broker, pipe_task)
    try:
        await _wait_until_ready(process)
    except BaseException:
        await served.stop()
        raise
    return served


async def _spawn(stdin: socket.socket, env: Mapping[str, str]) -> Process:
    # `start_process` starts it in a session of its own, so that it gets no signals from the terminal. With -P no module
    # is imported from the working folder.
    program = Program(argv=(sys.executable, "-P", "-m", "quintain_metadata"), env=env)
    try:
        return await start_process(program, stdin=stdin.fileno(), stdout=PIPE)
    except CannotStart as error:
        raise QuintainError(f"The metadata service's process cannot be started ({error.reason})") from None


async def _wait_until_ready(process: Process) -> None:
    """Wait until the process is ready. Raises the error that it reports."""
    assert process.stdout is not None, "it was started with a pipe"
    line = await process.stdout.readline()
    if not line:
        raise QuintainError(f"The metadata service's process exited with {await process.wait()} before it was ready")
    error = StartupStatus.from_wire(line).to_error()
    if error is not None:
        raise error
