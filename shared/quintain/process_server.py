"""Starts programs for `quintain.process`, and ends each one with all processes that it started.

This file runs as a script, in a small process of its own (``python -I -S``), because forking the calling process would
copy its threads' locks. For each program it forks a supervisor, which is a subreaper: a process that leaves its group
or loses its parent becomes the supervisor's child (``man 2 prctl``), so that no process of the program escapes. It
imports the standard library alone.

The messages on stdin are one byte with file descriptors: the connection of one program, its request (a file), and its
standard streams. On the connection the supervisor writes a line of JSON: ``{"pid": …}`` or ``{"errno": …}``, and at
the end ``{"exit_code": …}``. The end of the connection ends the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import pwd
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

#: An option of prctl(2).
_PR_SET_CHILD_SUBREAPER = 36

#: The word that makes this script the first process inside a sandbox.
INSIDE = "--inside"

#: The number of file descriptors of one request.
REQUEST_FDS = 5

#: How long to try to kill the processes of a program, in seconds.
_KILL_SECONDS = 5.0

_PIPE_BYTES = 65536


def main() -> None:
    """Start what the socket on stdin asks for, until it is closed."""
    control = socket.socket(fileno=os.dup(0))
    # Supervisors inherit this one, and must not keep the connection open.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake_fd = _notice_children()
    supervisors: set[int] = set()
    # A collection in a supervisor would copy the memory that it shares with this process.
    gc.freeze()
    gc.disable()
    while True:
        readable, _, _ = select.select([control.fileno(), wake_fd], [], [])
        if wake_fd in readable:
            os.read(wake_fd, _PIPE_BYTES)
            ended = {pid for pid, _ in _reap()}
            if ended & supervisors:
                # A supervisor ends its program's processes first; what is left was started by one that was killed.
                _kill_descendants(spared=supervisors - ended)
            supervisors -= ended
        if control.fileno() in readable:
            data, fds, _, _ = socket.recv_fds(control, 1, REQUEST_FDS)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                control.close()
                os.close(wake_fd)
                _supervise(fds)
            supervisors.add(pid)
            for fd in fds:
                os.close(fd)


def _supervise(fds: list[int]) -> NoReturn:
    """In a supervisor: run one program to its end, and end it when the connection ends."""
    try:
        connection_fd, request_fd, *streams = fds
        connection = socket.socket(fileno=connection_fd)
        with os.fdopen(request_fd, "rb") as file:
            file.seek(0)
            request = json.loads(file.read())
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        wake_fd = _notice_children()
        door_end, program_end = socket.socketpair()
        try:
            program = _start(request, streams, program_end.fileno())
        except OSError as error:
            _send(connection, {"errno": error.errno or 1})
            os._exit(0)
        program_end.close()
        for fd in streams:
            os.close(fd)
        _send(connection, {"pid": program})
        if request["door"] is not None:
            threading.Thread(target=_open_door, args=(door_end, tuple(request["door"])), daemon=True).start()
        exit_codes = _wait(program, connection.fileno(), wake_fd)
        exit_codes.update(_kill_descendants())
        _send(connection, {"exit_code": exit_codes.get(program, -int(signal.SIGKILL))})
    finally:
        os._exit(0)


def _wait(program: int, connection_fd: int, wake_fd: int) -> dict[int, int]:
    """Wait for the end of the program, or of the connection; returns the exit codes of what has ended."""
    exit_codes: dict[int, int] = {}
    while program not in exit_codes:
        readable, _, _ = select.select([connection_fd, wake_fd], [], [])
        if wake_fd in readable:
            os.read(wake_fd, _PIPE_BYTES)
            exit_codes.update(_reap())
        if connection_fd in readable:
            break
    return exit_codes


def _start(request: dict[str, Any], streams: list[int], door_fd: int) -> int:
    """Start the program and return its process id. Raises `OSError`."""
    entry = None if request["run_as"] is None else pwd.getpwnam(request["run_as"])
    user: dict[str, Any] = {}
    if entry is not None and entry.pw_uid != os.getuid():
        user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    stdin, stdout, stderr = streams
    process = subprocess.Popen(  # noqa: S603 -- no shell reads it
        [word.replace("{door_fd}", str(door_fd)) for word in request["wrapper"]] + request["argv"],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=request["cwd"],
        env=request["env"],
        start_new_session=True,
        pass_fds=[] if request["door"] is None else [door_fd],
        **user,
    )
    # This process waits for all its children itself.
    process.returncode = 0
    return process.pid


def _open_door(door_end: socket.socket, address: tuple[str, int]) -> None:
    """Forward what arrives at the socket that the sandbox's first process listens on to ``address``."""
    _, fds, _, _ = socket.recv_fds(door_end, 1, 1)
    if not fds:
        return
    listener = socket.socket(fileno=fds[0])
    while True:
        inside, _ = listener.accept()
        try:
            outside = socket.create_connection(address)
        except OSError:
            inside.close()
            continue
        for source, sink in ((inside, outside), (outside, inside)):
            threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PIPE_BYTES):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def run_inside(arguments: list[str]) -> NoReturn:
    """As the first process of a sandbox: hand out the door's socket, set the limits, and execute the program."""
    door_fd, port, memory_bytes, processes, user, group, *argv = arguments
    if port != "0":
        listener = socket.create_server(("127.0.0.1", int(port)))
        with socket.socket(fileno=int(door_fd)) as door_end:
            socket.send_fds(door_end, [b"d"], [listener.fileno()])
        listener.close()
    for kind, limit in (
        (resource.RLIMIT_DATA, int(memory_bytes)),
        (resource.RLIMIT_NPROC, int(processes)),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (most, most))
    if user != "0":
        os.setgroups([])
        os.setgid(int(group))
        os.setuid(int(user))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 -- no shell reads it
    except OSError as error:
        sys.stderr.write(f"{argv[0]} cannot be started in the sandbox: {error.strerror}\n")
    os._exit(127)


def _send(connection: socket.socket, message: dict[str, int]) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def _notice_children() -> int:
    """Make the end of a child readable at the file descriptor that is returned."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _reap() -> list[tuple[int, int]]:
    """Return the process ids and exit codes of the children that have ended."""
    ended: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((found[0], os.waitstatus_to_exitcode(found[1])))
    return ended


def _kill_descendants(spared: set[int] | None = None) -> dict[int, int]:
    """Kill all processes below this one but those ``spared`` and below; returns the exit codes of its children."""
    exit_codes: dict[int, int] = {}
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        exit_codes.update(_reap())
        if not spared and not _has_children():
            break
        pids = _descendants(os.getpid(), spared or set())
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return exit_codes


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descendants(root: int, spared: set[int]) -> list[int]:
    """Return the processes below ``root``, parents first."""
    children_of = _listed_children if Path("/proc/self/task", str(os.getpid()), "children").exists() else _scanned()
    found = [root]
    for pid in found:
        found += [child for child in children_of(pid) if child not in spared]
    return found[1:]


def _listed_children(pid: int) -> list[int]:
    """The children of a process, as Linux lists them for each of its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _scanned() -> Callable[[int], list[int]]:
    """The children of each process, from all processes: where Linux was built without the lists of children."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The fields after the name, which may contain anything: the state, then the parent.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    return lambda pid: children.get(pid, [])


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _LIBC.prctl(option, value, 0, 0, 0)


_LIBC = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        run_inside(sys.argv[2:])
    main()
