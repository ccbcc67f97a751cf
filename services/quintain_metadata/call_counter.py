"""Charges calls to the counter of a session and those of its ancestors, never beyond a limit, and gives them back."""

from __future__ import annotations

from quintain.contracts.invoke import TokenUsage
from quintain_metadata.session_rows import SessionRow, budget_exhausted, load_session
from quintain_metadata.store import SqlProgram, execute, fetch_one

#: Token counts of one call are limited to this, for each kind.
MAX_TOKENS_PER_CALL = 10**12


def charge(session: SessionRow, calls: int = 1) -> SqlProgram[int]:
    """Add calls to the counters of the session and all its ancestors; returns the session's own counter.

    Raises `BudgetExhausted`, which rolls the operation back: never check first and charge afterwards.
    """
    own_count = 0
    for payer in session.lineage:
        row = yield from fetch_one(
            "UPDATE session SET used = used + ? WHERE id = ? AND used + ? <= max_calls RETURNING used, reserved",
            *(calls, payer.id, calls),
            order=payer.counters_order,
            amounts=(0, 2),
        )
        if row is None:
            raise budget_exhausted(payer)
        used, reserved = row
        own_count = used if payer is session else own_count
        # Its parent is charged for at least what it reserved, since it was opened.
        calls = max(used, reserved) - max(used - calls, reserved)
        if not calls:
            break
    return own_count


class ChargedInMemory:
    """Charges calls in memory, as `charge` does one after another, for an operation that nothing runs beside."""

    def __init__(self) -> None:
        self._charged: dict[str, int] = {}

    def used(self, session: SessionRow) -> int:
        """Return the session's counter, with what was charged here."""
        return session.used + self._charged.get(session.id, 0)

    def charge(self, session: SessionRow) -> int:
        """Add a call, and return the session's own counter. Raises `BudgetExhausted`, and adds nothing then."""
        charged = dict[str, int]()
        for payer in session.lineage:
            calls = charged[payer.id] = self._charged.get(payer.id, 0) + 1
            used = payer.used + calls
            if used > payer.max_calls:
                raise budget_exhausted(payer)
            if used <= payer.reserved:
                break  # paid for by the ancestors already
        self._charged |= charged
        return session.used + charged[session.id]

    def write(self) -> SqlProgram[None]:
        """Add what was charged here to the counters in the ledger, whose constraint keeps each within its limit."""
        for session_id, calls in self._charged.items():
            yield from execute("UPDATE session SET used = used + ? WHERE id = ?", calls, session_id)


def refund(session: SessionRow, calls: int = 1) -> SqlProgram[None]:
    """Subtract calls from the counters of the session and all its ancestors."""
    for payer in session.lineage:
        row = yield from fetch_one(
            "UPDATE session SET used = used - ? WHERE id = ? RETURNING used, reserved",
            *(calls, payer.id),
            order=payer.counters_order,
        )
        assert row is not None, "a session is never deleted"
        used, reserved = row
        calls = max(used + calls, reserved) - max(used, reserved)
        if not calls:
            break


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


def add_tokens(session: SessionRow, *usages: TokenUsage) -> SqlProgram[None]:
    """Add the token usages of calls to the session and all its ancestors."""
    counts = [
        (*clamp_token_counts(each), 0 if each.reasoning is None else clamp_token_count(each.reasoning))
        for each in usages
    ]
    sums = [sum(kind) for kind in zip(*counts, strict=True)]
    for payer in session.lineage:
        yield from execute(
            "UPDATE session SET tokens_input = tokens_input + ?, tokens_output = tokens_output + ?,"
            " tokens_cached = tokens_cached + ?, tokens_reasoning = tokens_reasoning + ? WHERE id = ?",
            *(*sums, payer.id),
            order=payer.counters_order,
            amounts=(0, 1, 2, 3),
        )


def clamp_token_count(tokens: int) -> int:
    """Limit a provider's token count to a plausible range, so that a wrong one does not fail the settle."""
    return tokens if 0 <= tokens <= MAX_TOKENS_PER_CALL else min(max(0, tokens), MAX_TOKENS_PER_CALL)


def clamp_token_counts(usage: TokenUsage) -> tuple[int, int, int]:
    """Return the tokens of a call's input, its output and of its input from a cache, each limited."""
    counts = (usage.input, usage.output, usage.cached or 0)
    if min(counts) >= 0 and max(counts) <= MAX_TOKENS_PER_CALL:
        return counts
    return clamp_token_count(counts[0]), clamp_token_count(counts[1]), clamp_token_count(counts[2])
