"""Starts commands and services as forked copies of one process that has imported the packages already.

A command of its own interpreter spends one to two seconds of processor time on imports, and the suite starts many.
Here a server process imports the packages once and forks for each: every command and every service has its own
process, environment, folder and file descriptors, gets signals, and ends with its own exit code.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

#: Imported before the first fork. ``quintain_cli`` is not: its consoles look at the environment of their command.
PRELOADED = (
    *("quintain", "quintain_gateway", "quintain_host", "quintain_metadata", "quintain_runner", "quintain_view"),
    "quintain_worker",
)

#: Where the server listens that all processes of pytest-xdist share.
SERVER_VARIABLE = "QUINTAIN_TEST_COMMANDS"

#: How lengths, process ids and exit codes go over the socket.
_NUMBER = struct.Struct("!i")

#: Need an extra that may be missing, or are programs.
_NOT_PRELOADED = ("__main__", "superred", "function_worker", "process_worker")


class ForkedProcess:
    """One forked command, with what `subprocess.Popen` has of a process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = self._receive()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        return self.returncode

    def wait(self, seconds: float | None = None) -> int:
        """Wait for its end and return the exit code; a signal's number is negative. Raises `TimeoutError`."""
        if self.returncode is None:
            self._connection.settimeout(seconds)
            try:
                self.returncode = self._receive()
            except BlockingIOError:
                raise TimeoutError from None
            self._connection.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send the signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL: no last word."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def _receive(self) -> int:
        data = self._connection.recv(_NUMBER.size)
        assert len(data) == _NUMBER.size, "the server of commands has ended"
        number: int = _NUMBER.unpack(data)[0]
        return number


class CommandServer:
    """A client of a server process: of the one that the environment names, else of its own, which ends with it."""

    def __init__(self) -> None:
        if (path := os.environ.get(SERVER_VARIABLE)) is not None:
            self._path = path
            return
        self._folder = tempfile.TemporaryDirectory(prefix="quintain-commands-")
        self._path = os.environ[SERVER_VARIABLE] = str(Path(self._folder.name) / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        listener.listen(64)
        with listener:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.command_server", str(listener.fileno())],
                cwd=Path(__file__).parents[1],
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the server; it has no command of its own to end."""
        with self._process:  # closes its standard input, too
            self._process.kill()
        self._folder.cleanup()

    def start(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        files: Sequence[IO[bytes]],
        *,
        program: str = "quintain_cli",
    ) -> ForkedProcess:
        """Start ``python -m PROGRAM ARGS``, or a program's file; ``files`` are its stdin, stdout and stderr."""
        request = json.dumps({"program": program, "args": args, "env": dict(env), "folder": str(folder)}).encode()
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(90)
        connection.connect(self._path)
        descriptors = array.array("i", [file.fileno() for file in files])
        connection.sendmsg(
            [_NUMBER.pack(len(request))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors.tobytes())]
        )
        connection.sendall(request)
        return ForkedProcess(connection)


def _serve(listener: socket.socket) -> None:
    _preload()
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy all that was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that answer requests are not waited for
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection)
        connection.close()


def _preload() -> None:
    for name in PRELOADED:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith(_NOT_PRELOADED):
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(module.name)
    for name in ("typer", "rich.console", "rich.table"):
        importlib.import_module(name)


def _answer(connection: socket.socket) -> None:
    """Fork once more for the command; report its process id, then its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, descriptors, _, _ = socket.recv_fds(connection, _NUMBER.size, 3)
    with connection.makefile("rb") as stream:
        request = json.loads(stream.read(_NUMBER.unpack(length)[0]))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run_command(request["program"], request["args"], request["env"], request["folder"], descriptors)
    connection.sendall(_NUMBER.pack(pid))
    for descriptor in descriptors:
        os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ConnectionError):  # who started it has ended
        connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _run_command(program: str, args: list[str], env: dict[str, str], folder: str, descriptors: list[int]) -> None:
    # Where a shell started the suite in the background, the server ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    is_file = program.endswith(".py")
    sys.path[0] = str(Path(program).parent) if is_file else folder
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [program if is_file else "quintain", *args]
    code: object = 1
    try:
        run = runpy.run_path if is_file else runpy.run_module
        run(program, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
