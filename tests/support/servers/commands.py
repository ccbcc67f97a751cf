"""Runs a program to its end, within a time."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from support.servers.errors import ServerUnavailable


def run_command(argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float, stdin: str = "") -> str:
    """Return what the program printed. Raises `ServerUnavailable` where it failed, is missing, or took too long."""
    name = " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            env=dict(environment),
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServerUnavailable(f"`{name}` did not end within {timeout_seconds:g} s") from None
    except OSError as error:
        raise ServerUnavailable(f"`{name}` could not be started: {error.strerror}") from error
    printed = done.stdout.decode(errors="replace").strip()
    if done.returncode != 0:
        last_lines = " / ".join(printed.splitlines()[-3:]) or "it printed nothing"
        raise ServerUnavailable(f"`{name}` failed with {done.returncode}: {last_lines}")
    return printed
