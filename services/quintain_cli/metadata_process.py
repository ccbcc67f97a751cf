"""The metadata service of a run in a process of its own: begun, begun again when it dies, ended with the run.

A run of many calls gets it, so that the ledger has a core to itself (``docs/decisions/0013``). It finds the broker of
this process over a pipe; what it had taken and not settled when it died is delivered to the one that takes its place.
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
from quintain.bus.pipe_broker import PipeBroker
from quintain.errors import QuintainError
from quintain.process import CannotStart, Program, end_process, start_process
from quintain.secret_files import without_variables
from quintain_metadata import Word

log = logging.getLogger(__name__)

#: How long it may take to end when its pipe is closed, before it is killed, in seconds.
ENDING_SECONDS = 15.0

#: The pause before one that died, or could not begin, is begun again grows from the one to the other, in seconds.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 15.0

#: What its environment names, and nobody else's may.
_LEDGER, _ADMIN = "QUINTAIN_LEDGER_URL", "QUINTAIN_ADMIN_TOKEN"


@dataclass(frozen=True, slots=True)
class _Running:
    """A process, and the task that serves its pipe."""

    process: Process
    serving: asyncio.Task[None]

    async def end(self) -> None:
        """Let it finish what it was asked; kill it where it does not."""
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
        await end_process(self.process, ENDING_SECONDS)


@contextlib.asynccontextmanager
async def metadata_process(
    broker: MemoryBroker, ledger_url: str, admin_token: str, env: Mapping[str, str]
) -> AsyncIterator[None]:
    """A running metadata service on this broker. Its environment is ``env`` with the ledger and the token.

    Raises `ConfigError` and `BudgetUnavailable` as the opening of a ledger does.
    """
    env = {**without_variables(env, {_LEDGER, _ADMIN}), _LEDGER: ledger_url, _ADMIN: admin_token}
    keeper = _Keeper(broker, env)
    await keeper.begin()
    try:
        yield
    finally:
        await keeper.end()


class _Keeper:
    """Keeps one process running."""

    def __init__(self, broker: MemoryBroker, env: Mapping[str, str]) -> None:
        self._broker, self._env = broker, env
        self._running: _Running | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin it. Raises what keeps it from answering."""
        self._running = await _begun(self._broker, self._env)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(self._running), name="metadata-process")

    async def end(self) -> None:
        """End it, and begin it no more."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._running is not None:
            await self._running.end()

    async def _keep(self, running: _Running) -> None:
        while True:
            code = await running.process.wait()
            await running.end()
            log.warning("The metadata service's process ended with %d; another takes its place", code)
            self._running = running = await self._begun_again()

    async def _begun_again(self) -> _Running:
        pause = FIRST_PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                return await _begun(self._broker, self._env)
            except QuintainError as error:
                log.error("The metadata service does not answer yet: %s", error.message)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _begun(broker: MemoryBroker, env: Mapping[str, str]) -> _Running:
    near, far = socket.socketpair()
    with far:
        reader, writer = await asyncio.open_connection(sock=near)
        try:
            process = await _started(far, env)
        except BaseException:
            writer.close()
            raise
    pipe = PipeBroker(broker.connect(), reader, writer)
    running = _Running(process, asyncio.get_running_loop().create_task(pipe.serve(), name="metadata-pipe"))
    try:
        await _heard(process)
    except BaseException:
        await running.end()
        raise
    return running


async def _started(stdin: socket.socket, env: Mapping[str, str]) -> Process:
    # A session of its own: what the terminal sends is the run's to hear. And no folder of the user's is searched for
    # modules.
    program = Program(argv=(sys.executable, "-P", "-m", "quintain_metadata"), env=env)
    try:
        return await start_process(program, stdin=stdin.fileno(), stdout=PIPE)
    except CannotStart as error:
        raise QuintainError(f"The metadata service's process cannot be started ({error.reason})") from None


async def _heard(process: Process) -> None:
    """Return when it answers. Raises why it does not."""
    assert process.stdout is not None, "it was started with a pipe"
    line = await process.stdout.readline()
    if not line:
        raise QuintainError(f"The metadata service's process ended with {await process.wait()} before it answered")
    error = Word.from_wire(line).raised()
    if error is not None:
        raise error
