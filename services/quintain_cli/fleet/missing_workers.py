"""Says, before a call, that no worker has registered its target, and waits for the first worker of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from quintain.client.client import Client
from quintain.contracts.session import Info
from quintain_cli.console import escape_for_terminal, print_stderr

#: How often the registered targets are read while a run waits for them, in seconds.
READ_SECONDS = 0.5


def missing_workers(info: Info, targets: Collection[str]) -> str | None:
    """Return what is missing for calls of these targets, and how it is started; None if nothing is."""
    missing = [name for name in targets if name not in info.available_targets]
    if not missing:
        return None
    start = "start one with `quintain serve worker` where its configuration is"
    if not info.available_targets:
        return f"no worker has registered a target of this session: {start}"
    there = ", ".join(info.available_targets)
    return f"no worker has registered {', '.join(missing)}; registered are: {there}: {start}"


def print_missing(missing: str) -> None:
    """Print what a call waits for."""
    print_stderr(f"waiting  {escape_for_terminal(missing)}")


async def wait_for_first_worker(client: Client, targets: Collection[str], timeout_seconds: float) -> None:
    """Wait up to ``timeout_seconds`` for the registration of a target, while none is registered at all."""
    loop = asyncio.get_running_loop()
    give_up_at, is_told = loop.time() + timeout_seconds, False
    while not (info := await client.get_info()).available_targets and loop.time() < give_up_at:
        if not is_told and (missing := missing_workers(info, targets)) is not None:
            print_missing(missing)
            is_told = True
        await asyncio.sleep(READ_SECONDS)
