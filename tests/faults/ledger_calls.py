"""What the ledger has written down of each call, read beside the service, and whether it agrees with the world."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from quintain_metadata.ledger.audit import FaultCode
from quintain_metadata.ledger.lifecycle import COUNTED_STATES, CallState
from quintain_metadata.store.base import execute
from quintain_metadata.store.opening import open_snapshot


@dataclass(frozen=True)
class LedgerCall:
    """One call in the ledger. ``attempts`` are the states of its attempts, those that were void among them."""

    state: CallState
    attempts: tuple[str, ...]
    fault: str | None

    @property
    def charged(self) -> bool:
        """Whether it counts against the session's budget."""
        return self.state in COUNTED_STATES

    @property
    def granted_attempts(self) -> int:
        """How many attempts were told that they may ask the provider."""
        return sum(state != "void" for state in self.attempts)


async def read_calls(ledger_url: str, session_id: str) -> dict[str, LedgerCall]:
    """Every call of the session, by request id."""
    async with open_snapshot(ledger_url) as snapshot:
        attempts = await snapshot.read(
            execute("SELECT request_id, id, state FROM attempt WHERE session_id = ?", session_id)
        )
        calls = await snapshot.read(
            execute("SELECT request_id, state, fault, attempt_id FROM call WHERE session_id = ?", session_id)
        )
    attempt_states: dict[str, dict[str, str]] = defaultdict(dict)
    for request_id, attempt_id, state in attempts:
        attempt_states[request_id][attempt_id] = state
    for request_id, _, _, attempt_id in calls:
        if attempt_id is not None:
            # The attempt that holds a call needs no row.
            attempt_states[request_id].setdefault(attempt_id, "running")
    return {
        request_id: LedgerCall(
            state=CallState(state),
            attempts=tuple(attempt_states[request_id].values()),
            fault=None if fault is None else str(FaultCode.from_wire(fault).code),
        )
        for request_id, state, fault, _ in calls
    }
