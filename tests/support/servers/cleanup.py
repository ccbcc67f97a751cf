"""Removes processes, containers and files of a test run, also when the run is killed."""

from __future__ import annotations

import subprocess


class CleanupProcess:
    """Runs a shell script whose standard input ends when `finish` is called or when this process dies.

    The kernel closes the pipe at the end of this process, however it ends, SIGKILL included; the script reads to the
    end of its input and then cleans up. An orderly end takes the same way.
    """

    def __init__(self, script: str, *arguments: str) -> None:
        # A session of its own: Ctrl-C at the terminal must not reach it.
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script, "quintain-cleanup", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def write_line(self, line: str) -> None:
        """Add a line to the script's input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """End the script's input, and wait until the script ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
