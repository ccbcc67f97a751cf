"""The first process in a sandbox: opens the port, sets the limits, takes another user's rights, becomes the program.

This file runs as a script (``python -I -S``) and imports the standard library alone. Its arguments are a file
descriptor of a socket, a port, the most bytes of memory and processes, a user, a group and further groups by number,
and the program with its arguments. To the socket it sends one message, with the file descriptor of a listening socket
unless the port is 0, and a second one if the program cannot be started: the number of the system's error.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from typing import NoReturn

#: The exit code of a program that cannot be started.
CANNOT_START = 127


def main(arguments: list[str]) -> NoReturn:
    """Become the program of these arguments."""
    control_fd, port, memory_bytes, processes, user, group, groups, *argv = arguments
    control = socket.socket(fileno=int(control_fd))
    control.set_inheritable(False)
    if port == "0":
        control.send(b"started")
    else:
        with socket.create_server(("127.0.0.1", int(port))) as listener:
            socket.send_fds(control, [b"started"], [listener.fileno()])
    for kind, limit in (
        (resource.RLIMIT_DATA, int(memory_bytes)),
        (resource.RLIMIT_NPROC, int(processes)),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (most, most))
    if user != "0":
        os.setgroups([int(number) for number in groups.split(",")])
        os.setgid(int(group))
        os.setuid(int(user))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 -- no shell reads it
    except OSError as error:
        control.send(str(error.errno).encode())
    os._exit(CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
