"""Calls and token usage of a run, read from the ledger: ``calls.jsonl`` and the usage of each target."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from quintain.client.client import Client
from quintain.contracts.session import TargetUsage
from quintain_metadata import CallRecord, export_page, open_snapshot
from quintain_runner import atomic_write, read_run

CALLS_FILE_NAME = "calls.jsonl"

#: An answer may arrive before its call is settled: the timeout and interval of waiting for that, in seconds.
SETTLE_TIMEOUT_SECONDS, SETTLE_POLL_SECONDS = 5.0, 0.1


def fleet_calls_note(session_id: str) -> str:
    """Return the note in the run's record that says where a fleet keeps the calls of the run."""
    return f"on the fleet, beside its ledger: quintain ledger export --session {session_id}"


async def write_calls(folder: Path, ledger_url: str) -> None:
    """Write all calls of a run's sessions and their children to ``calls.jsonl``, atomically, when the run has ended.

    A call that still runs by the ledger has no worker any more: its outcome will not be known, so it is in
    doubt. Raises `QuintainError` if the file cannot be written.
    """
    sessions = (await asyncio.to_thread(read_run, folder)).sessions
    async with open_snapshot(ledger_url) as snapshot:
        with atomic_write(folder / CALLS_FILE_NAME) as file:
            for session in sessions:
                cursor = ("", "")
                while page := await snapshot.read(export_page(cursor, session_id=session.session_id)):
                    file.writelines(_without_running(call).to_wire() + b"\n" for call in page)
                    cursor = (page[-1].session_id, page[-1].request_id)


def _without_running(call: CallRecord) -> CallRecord:
    return call.model_copy(update={"state": "inDoubt"}) if call.state == "running" else call


async def read_final_usage(client: Client) -> Mapping[str, TargetUsage] | None:
    """Return a session's usage per target, after waiting up to `SETTLE_TIMEOUT_SECONDS` until no call is running."""
    for _ in range(round(SETTLE_TIMEOUT_SECONDS / SETTLE_POLL_SECONDS)):
        info = await client.get_info(per_target=True)
        if not info.running:
            break
        await asyncio.sleep(SETTLE_POLL_SECONDS)
    return info.per_target


async def read_current_usage(client: Client) -> Mapping[str, TargetUsage] | None:
    """Return a session's usage per target now, while calls are running."""
    return (await client.get_info(per_target=True)).per_target
