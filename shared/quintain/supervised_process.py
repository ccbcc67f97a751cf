"""Programs that end with every process they started, also with those that left their process group.

They are started by `quintain.process_server`, a process beside this one that starts with the first program.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import sys
import tempfile
from io import FileIO
from pathlib import Path
from typing import IO

from quintain.program import Program, executable_of, start_error
from quintain.program_confinement import PROCESS_SERVER

#: The exit code of a program whose supervisor was killed.
_KILLED = -9

_READ_BYTES = 4096


class SupervisedProcess:
    """A running program, made by `start_program`. ``pid`` is its process id."""

    def __init__(self, pid: int, connection: socket.socket, exiting: asyncio.Task[int]) -> None:
        self.pid = pid
        self._connection = connection
        self._exiting = exiting

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the program runs."""
        return self._exiting.result() if self._exiting.done() and not self._exiting.cancelled() else None

    async def wait(self) -> int:
        """Wait for the end of the program and of all processes that it started; returns its exit code."""
        return await asyncio.shield(self._exiting)

    async def end(self) -> None:
        """Kill what is left of the program and of all processes that it started, and wait for their end."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        await self.wait()


async def start_program(
    program: Program, *, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]
) -> SupervisedProcess:
    """Start a program, which `SupervisedProcess.end` ends; a cancellation before this returns ends it, too.

    Raises `CannotStart`. The caller must close its own copies of the streams, or readers do not see their end.
    """
    connection = _request(program, (stdin.fileno(), stdout.fileno(), stderr.fileno()))
    connection.settimeout(0)
    loop = asyncio.get_running_loop()
    buffer = bytearray()
    try:
        first = await _read_line(loop, connection, buffer)
    except BaseException:
        connection.close()
        raise
    if "pid" not in first:
        connection.close()
        number = first.get("errno")
        raise start_error(number, "its supervisor was killed" if number is None else os.strerror(number))

    async def wait_for_exit() -> int:
        return (await _read_line(loop, connection, buffer)).get("exit_code", _KILLED)

    exiting = loop.create_task(wait_for_exit(), name="program")
    exiting.add_done_callback(lambda _: connection.close())
    return SupervisedProcess(first["pid"], connection, exiting)


def run_to_file(program: Program, *, stdout: IO[bytes], stderr: IO[bytes]) -> int:
    """Run a program to its end without input, and return its exit code. Blocks. Raises `CannotStart`."""
    with (
        FileIO(os.devnull) as stdin,
        _request(program, (stdin.fileno(), stdout.fileno(), stderr.fileno())) as connection,
        connection.makefile("rb") as reader,
    ):
        first: dict[str, int] = json.loads(reader.readline() or b"{}")
        if "pid" not in first:
            number = first.get("errno")
            raise start_error(number, "its supervisor was killed" if number is None else os.strerror(number))
        last: dict[str, int] = json.loads(reader.readline() or b"{}")
        return last.get("exit_code", _KILLED)


async def _read_line(loop: asyncio.AbstractEventLoop, connection: socket.socket, buffer: bytearray) -> dict[str, int]:
    """Read one message of the supervisor; empty if the connection ended."""
    while b"\n" not in buffer:
        data = b""
        with contextlib.suppress(ConnectionError):
            data = await loop.sock_recv(connection, _READ_BYTES)
        if not data:
            return {}
        buffer += data
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    message: dict[str, int] = json.loads(line)
    return message


def _request(program: Program, streams: tuple[int, int, int]) -> socket.socket:
    """Send the program to the process server; returns its connection. Raises `CannotStart`."""
    name, *arguments = program.argv
    cwd = program.cwd or Path.cwd()
    confinement = program.confinement
    request = {
        "argv": [executable_of(name, program.env), *arguments],
        "env": dict(program.env),
        "cwd": str(cwd),
        # In a sandbox, its first process takes the other user's rights.
        "run_as": confinement.run_as if confinement.sandbox is None else None,
        "wrapper": confinement.wrapper(cwd, program.env),
        "door": confinement.door,
    }
    try:
        own_end, server_end = socket.socketpair()
        with server_end, _memory_file() as file:
            file.write(json.dumps(request).encode())
            file.flush()
            fds = [server_end.fileno(), file.fileno(), *streams]
            try:
                socket.send_fds(_control_socket(), [b"p"], fds)
            except OSError:
                # The server was killed: another one is started.
                _control_socket().close()
                _control_socket.cache_clear()
                socket.send_fds(_control_socket(), [b"p"], fds)
    except OSError as error:
        raise start_error(error.errno, error.strerror or str(error)) from None
    return own_end


def _memory_file() -> IO[bytes]:
    """A file in memory, where the system has that: a request contains the program's environment."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("program"), "w+b")
    return tempfile.TemporaryFile()


@functools.cache
def _control_socket() -> socket.socket:
    """Start the process server, which ends with this process, and return the socket to it."""
    own_end, server_end = socket.socketpair()
    with server_end:
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", str(PROCESS_SERVER)],
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, server_end.fileno(), 0),
                # Whoever reads this process's output must not wait for the server's end.
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    return own_end
