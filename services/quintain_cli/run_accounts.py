"""What the ledger says of a run: ``calls.jsonl``, and which target was called for how many tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from quintain.client.evaluator import Evaluator
from quintain.contracts.metadata import TargetSpend
from quintain_metadata import export_calls, snapshot_of
from quintain_runner import replacing

FILE_NAME = "calls.jsonl"

#: An answer may overtake its own settlement: so long it is waited for, and asked about so often, in seconds.
SETTLED_SECONDS, LOOK_SECONDS = 5.0, 0.1


def elsewhere(session_id: str) -> str:
    """What the record of a run says whose calls another machine keeps."""
    return f"on the fleet, beside its ledger: quintain ledger export --session {session_id}"


async def write_calls(folder: Path, ledger_url: str, session_id: str) -> None:
    """Write every call of a session and its children, in one step; a metadata service may be at work on the ledger.

    Raises `QuintainError` where the disk refuses it.
    """
    after = ("", "")
    async with snapshot_of(ledger_url) as snapshot:
        with replacing(folder / FILE_NAME) as file:
            while page := await snapshot.read(export_calls(after, session_id=session_id)):
                file.writelines(call.to_wire() + b"\n" for call in page)
                after = (page[-1].session_id, page[-1].request_id)


async def spending_of(client: Evaluator) -> Mapping[str, TargetSpend] | None:
    """What a session spent on which target, once its last calls are settled."""
    for _ in range(round(SETTLED_SECONDS / LOOK_SECONDS)):
        info = await client.get_info(per_target=True)
        if not info.running:
            break
        await asyncio.sleep(LOOK_SECONDS)
    return info.per_target


async def spending_so_far(client: Evaluator) -> Mapping[str, TargetSpend] | None:
    """The same while calls are under way."""
    return (await client.get_info(per_target=True)).per_target
