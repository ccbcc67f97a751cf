"""Ends the processes that a program left behind, also those that left its process group with ``setsid``.

Each program has a variable that its processes inherit, and Linux shows the environments of processes below ``/proc``.
Elsewhere nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

#: The marks of a program and of those that it runs in, each with a full stop at its end.
MARK_VARIABLE: Final = "QUINTAIN_PROGRAM"

#: How long to wait for processes that are just starting, in seconds; see `_has_no_environment_yet`.
_STARTING_SECONDS = 0.5

#: The place of a process's start among the fields after its name in ``/proc/PID/stat``, and how many of its units are
#: a second.
_START_FIELD = 19
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

_READ_BYTES = 131_072

#: How much of a command line is told, in characters.
_COMMAND_CHARACTERS = 80


class ProcessMark:
    """A mark of one program: `variables` are for its environment, and `kill` ends all that inherited them.

    With ``inherited`` it is the mark that this process was started with. Raises `KeyError` where it has none.
    """

    def __init__(self, env: Mapping[str, str], *, inherited: bool = False) -> None:
        # A program may be Quintain itself, whose programs then have both marks.
        marks = env[MARK_VARIABLE] if inherited else f"{env.get(MARK_VARIABLE, '')}{secrets.token_hex(12)}."
        self.variables = {MARK_VARIABLE: marks}
        self._own = marks.split(".")[-2].encode() + b"."
        self._inherited = inherited
        self._made = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0

    def find(self) -> set[int]:
        """Return the processes with this mark; with ``inherited`` also this process's children without it."""
        return self._find()[0]

    def kill(self, spared: Collection[int] = ()) -> list[str]:
        """Kill all processes with this mark: they, and those that they start meanwhile, are ended or ending.

        Returns their command lines. This process and the ``spared`` ones are left alone.
        """
        killed: set[int] = set()
        commands: list[str] = []
        deadline = time.monotonic() + _STARTING_SECONDS
        while True:
            found, starting = self._find()
            found -= {os.getpid(), *spared}
            for pid in found - killed:
                words = (_read(f"/proc/{pid}/cmdline") or b"").decode(errors="replace").split("\0")
                commands.append(" ".join(words).strip()[:_COMMAND_CHARACTERS] or str(pid))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            # A killed process starts no others, so only the new ones may have.
            if found <= killed and (not starting or time.monotonic() > deadline):
                return commands
            killed |= found
            if starting:
                time.sleep(0.001)

    def _find(self) -> tuple[set[int], bool]:
        """Return the marked processes, and whether there is one of which that is not known yet."""
        found = _children() if self._inherited else set()
        starting = False
        for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112, PTH208 -- Path is slow
            if not name.isdigit():
                continue
            environment = _read(f"/proc/{name}/environ")
            if environment is None:
                continue
            if self._own in environment:
                found.add(int(name))
            elif not environment:
                starting = starting or self._has_no_environment_yet(name)
        return found, starting

    def _has_no_environment_yet(self, name: str) -> bool:
        """Whether a process without an environment may get one: it began after this mark, and is no zombie.

        While a process replaces its program (``execve``), its environment is empty for a moment.
        """
        try:
            Path(f"/proc/{name}/exe").readlink()
        except OSError:
            return False
        stat = (_read(f"/proc/{name}/stat") or b"").rpartition(b")")[2].split()
        return len(stat) > _START_FIELD and int(stat[_START_FIELD]) / _TICKS_PER_SECOND >= self._made - 1


def _children() -> set[int]:
    """The running children of this process, whatever their environment."""
    listed = [_read(f"{thread}/children") or b"" for thread in Path("/proc/self/task").glob("*")]
    return {int(pid) for pids in listed for pid in pids.split() if _is_running(int(pid))}


def _is_running(pid: int) -> bool:
    """Whether a process is no zombie."""
    return b") Z " not in (_read(f"/proc/{pid}/stat") or b") Z ")


def _read(path: str) -> bytes | None:
    """The beginning of a small file; None if the process has ended, or is another user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
