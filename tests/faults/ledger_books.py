"""What the ledger has written down of each call, read beside the service, and whether it agrees with the world."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from quintain_metadata.audit import FaultCode
from quintain_metadata.lifecycle import COUNTED, State
from quintain_metadata.snapshot import snapshot_of
from quintain_metadata.steps import run


@dataclass(frozen=True)
class Book:
    """One call in the ledger. ``attempts`` are the states of its attempts, those that were void among them."""

    state: State
    attempts: tuple[str, ...]
    fault: str | None

    @property
    def charged(self) -> bool:
        """Whether it counts against the session's budget."""
        return self.state in COUNTED

    @property
    def granted(self) -> int:
        """How many attempts were told that they may ask the provider."""
        return sum(state != "void" for state in self.attempts)


async def books_of(ledger_url: str, session_id: str) -> dict[str, Book]:
    """Every call of the session, by request id."""
    async with snapshot_of(ledger_url) as snapshot:
        attempts = await snapshot.read(run("SELECT request_id, state FROM attempt WHERE session_id = ?", session_id))
        calls = await snapshot.read(run("SELECT request_id, state, fault FROM call WHERE session_id = ?", session_id))
    tried: dict[str, list[str]] = defaultdict(list)
    for request_id, state in attempts:
        tried[request_id].append(state)
    return {
        request_id: Book(
            state=State(state),
            attempts=tuple(tried[request_id]),
            fault=None if fault is None else str(FaultCode.from_wire(fault).code),
        )
        for request_id, state, fault in calls
    }
