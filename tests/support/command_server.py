"""Runs commands in forked copies of one process that has imported the packages already.

A command of its own interpreter spends about a second of processor time on imports; the suite runs several hundred.
Here a server process imports the packages once and forks for each command: the command has its own process,
environment, folder and file descriptors, and ends with its own exit code. Commands that a test starts, signals or
kills are started as programs (`support.command_line.RunningCommand`), not here.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO

#: Imported before the first fork. ``quintain_cli`` is not: its consoles look at the environment of their command.
PRELOADED = ("quintain", "quintain_gateway", "quintain_host", "quintain_metadata", "quintain_runner", "quintain_worker")

#: Need an extra that may be missing, or are programs.
_NOT_PRELOADED = ("__main__", "superred", "function_worker", "process_worker")


class CommandServer:
    """The client of one server process, which ends with this process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="quintain-commands-")
        self._path = str(Path(self._folder.name) / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        listener.listen(16)
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
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def run(
        self, args: tuple[str, ...], env: Mapping[str, str], folder: Path, files: tuple[IO[bytes], ...], seconds: float
    ) -> int:
        """Run a command to its end and return its exit code; ``files`` are its stdin, stdout and stderr.

        Raises `TimeoutError` after ``seconds``; the command is killed then.
        """
        request = json.dumps({"args": args, "env": dict(env), "folder": str(folder)}).encode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(self._path)
            descriptors = array.array("i", [file.fileno() for file in files])
            connection.sendmsg(
                [len(request).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors.tobytes())]
            )
            connection.sendall(request)
            with connection.makefile("rb") as replies:
                pid = int(replies.readline())
                try:
                    return int(replies.readline())
                except TimeoutError:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    raise


def _serve(listener: socket.socket) -> None:
    _preload()
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
    length, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        request = json.loads(stream.read(int.from_bytes(length, "big")))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run_command(request["args"], request["env"], request["folder"], descriptors)
    connection.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run_command(args: list[str], env: dict[str, str], folder: str, descriptors: list[int]) -> None:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = ["quintain", *args]
    code: object = 1
    try:
        importlib.import_module("quintain_cli.__main__").main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
