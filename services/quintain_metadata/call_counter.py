"""Charges calls to the counter of a session and those of its ancestors, never beyond a limit, and gives them back."""

from __future__ import annotations

from collections.abc import Mapping

from quintain.contracts.invoke import TokenUsage
from quintain_metadata.session_rows import SessionRow, budget_exhausted, load_session, lock_sessions
from quintain_metadata.store import SqlProgram, fetch_one, for_each

#: Token counts of one call are limited to this, for each kind.
MAX_TOKENS_PER_CALL = 10**12

#: Adds to the counters of a session; the constraint of the table keeps the first within its limit.
_COUNT_SQL = (
    "UPDATE session SET used = used + ?, tokens_input = tokens_input + ?, tokens_output = tokens_output + ?,"
    " tokens_cached = tokens_cached + ?, tokens_reasoning = tokens_reasoning + ? WHERE id = ?"
)


class Counters:
    """The counters of sessions whose rows are locked, changed in memory until they are written."""

    def __init__(self, sessions: Mapping[str, SessionRow]) -> None:
        self.sessions = sessions
        self._added: dict[str, list[int]] = {}

    def used(self, session: SessionRow) -> int:
        """Return the session's counter, with what was added here."""
        added = self._added.get(session.id)
        return session.used if added is None else session.used + added[0]

    def charge(self, session: SessionRow, calls: int = 1) -> int:
        """Add calls to the session and its ancestors, and return its own counter.

        Raises `BudgetExhausted`, and adds nothing then.
        """
        charged = list[tuple[str, int]]()
        for payer in session.lineage:
            used = self.used(payer) + calls
            if used > payer.max_calls:
                raise budget_exhausted(payer)
            charged.append((payer.id, calls))
            # Its parent is charged for at least what it reserved, since it was opened.
            calls = max(used, payer.reserved) - max(used - calls, payer.reserved)
            if not calls:
                break
        for session_id, count in charged:
            self._of(session_id)[0] += count
        return self.used(session)

    def refund(self, session: SessionRow, calls: int = 1) -> None:
        """Subtract calls from the session and its ancestors."""
        for payer in session.lineage:
            used = self.used(payer) - calls
            self._of(payer.id)[0] -= calls
            calls = max(used + calls, payer.reserved) - max(used, payer.reserved)
            if not calls:
                break

    def add_tokens(self, session: SessionRow, usage: TokenUsage) -> None:
        """Add the token usage of a call to the session and its ancestors."""
        reasoning = 0 if usage.reasoning is None else clamp_token_count(usage.reasoning)
        for payer in session.lineage:
            counts = self._of(payer.id)
            for place, count in enumerate((*clamp_token_counts(usage), reasoning), start=1):
                counts[place] += count

    def write(self) -> SqlProgram[None]:
        """Add what was added here to the counters in the ledger."""
        yield from for_each(_COUNT_SQL, [(*counts, session_id) for session_id, counts in self._added.items()])

    def _of(self, session_id: str) -> list[int]:
        return self._added.setdefault(session_id, [0] * 5)


def charge(session: SessionRow, calls: int) -> SqlProgram[None]:
    """Add calls to the counters of a session and its ancestors. Raises `BudgetExhausted`."""
    counters = Counters((yield from lock_sessions([session.id])))
    counters.charge(counters.sessions[session.id], calls)
    yield from counters.write()


def refund(session: SessionRow, calls: int) -> SqlProgram[None]:
    """Subtract calls from the counters of a session and its ancestors."""
    counters = Counters((yield from lock_sessions([session.id])))
    counters.refund(counters.sessions[session.id], calls)
    yield from counters.write()


def release_reserved(session_id: str) -> SqlProgram[None]:
    """Give a session's parent back what the session reserved and did not use; of a session that ended."""
    session = yield from load_session(session_id)
    if session is None or not session.reserved:
        return
    row = yield from fetch_one(
        "UPDATE session SET reserved = 0 WHERE id = ? AND reserved = ? RETURNING used", session_id, session.reserved
    )
    if row is not None and session.reserved > row[0]:
        yield from refund(session.ancestors[0], session.reserved - row[0])


def clamp_token_count(tokens: int) -> int:
    """Limit a provider's token count to a plausible range, so that a wrong one does not fail the settle."""
    return tokens if 0 <= tokens <= MAX_TOKENS_PER_CALL else min(max(0, tokens), MAX_TOKENS_PER_CALL)


def clamp_token_counts(usage: TokenUsage) -> tuple[int, int, int]:
    """Return the tokens of a call's input, its output and of its input from a cache, each limited."""
    counts = (usage.input, usage.output, usage.cached or 0)
    if min(counts) >= 0 and max(counts) <= MAX_TOKENS_PER_CALL:
        return counts
    return clamp_token_count(counts[0]), clamp_token_count(counts[1]), clamp_token_count(counts[2])
