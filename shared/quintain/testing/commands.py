"""Programs that the test broker needs: run to their end, within a time, with an error that can be read."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from quintain.errors import BrokerUnavailable


def run_command(argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> str:
    """What the program printed. Raises `BrokerUnavailable` where it failed, is missing, or took too long."""
    name = " ".join(argv)
    try:
        done = subprocess.run(  # noqa: S603 -- no shell, and none of the words comes from outside
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BrokerUnavailable(f"`{name}` did not end within {timeout_seconds:g} s") from None
    except OSError as error:
        raise BrokerUnavailable(f"`{name}` could not be started: {error.strerror}") from error
    printed = done.stdout.decode(errors="replace").strip()
    if done.returncode != 0:
        last = " / ".join(printed.splitlines()[-3:]) or "it printed nothing"
        raise BrokerUnavailable(f"`{name}` failed with {done.returncode}: {last}")
    return printed
