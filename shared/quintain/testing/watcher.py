"""Cleaning up after ourselves, however we end: a process that outlives its starter.

A node, a container or a file that we leave behind when somebody kills us is somebody else's riddle. The
watcher reads a pipe that only its starter holds. The kernel closes it at the starter's end, with -9 too, and
then the watcher does what it was told. An orderly end takes the same way, so it is no path of its own.
"""

from __future__ import annotations

import subprocess


class Watcher:
    """Runs a shell script whose standard input ends when told to finish, or when its starter is no more."""

    def __init__(self, script: str, *arguments: str) -> None:
        # A session of its own: Ctrl-C at the terminal goes to the starter, which then ends in its order.
        self._process = subprocess.Popen(  # noqa: S603 -- the scripts are constants of this package
            ["/bin/sh", "-c", script, "quintain-watcher", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def tell(self, line: str) -> None:
        """Add a line to what the script reads."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """End what the script reads, and wait until it has done its work."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
