"""Reads sessions, and charges their counters and those of their ancestors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.proof import CallProof, SessionToken
from quintain.contracts.session import SessionState
from quintain.errors import BudgetExhausted, Unauthorized
from quintain_metadata.ledger.base import LockOrder, Phase, SqlProgram, execute, fetch_one

#: Token counts of one call are limited to this, for each kind.
MAX_TOKENS_PER_CALL = 10**12


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A row of the table ``session``, and the rows of its ancestors, nearest first.

    ``reserved`` calls of a child are charged to its parent whether they were made or not, see `release_reserved`.
    """

    id: str
    token_sha256: bytes
    parent_id: str | None
    default_target: str
    allowed_targets: str | None
    max_calls: int
    used: int
    state: str
    label: str | None
    deadline_ms: int
    store_replies: int
    created_at: int
    expires_at: int | None
    tokens_input: int
    tokens_output: int
    tokens_cached: int
    tokens_reasoning: int
    reserved: int
    ignore_unsupported: int
    max_body_bytes: int | None
    ancestors: tuple[SessionRow, ...] = ()

    @property
    def lineage(self) -> tuple[SessionRow, ...]:
        """The session and its ancestors: all of them are charged, and all must be open."""
        return (self, *self.ancestors)

    @property
    def counters_order(self) -> LockOrder:
        """The place of a statement that changes its counters: children before their parents, as one operation does."""
        return (Phase.SESSIONS - len(self.ancestors), self.id, "")

    def allows(self, target: str) -> bool:
        """Whether the session may call this target."""
        return self.allowed_targets is None or target in json.loads(self.allowed_targets)

    def available(self, registered: Collection[str]) -> list[str]:
        """Return those of the registered targets that the session may call, in the order in which it names them."""
        if self.allowed_targets is None:
            return list(registered)
        return [name for name in json.loads(self.allowed_targets) if name in registered]

    def require_calls_left(self) -> None:
        """Raise `BudgetExhausted` if a further call would be refused. Admission decides by `charge`, not by this."""
        for payer in self.lineage:
            if payer.used >= payer.max_calls:
                raise budget_exhausted(payer)
            if payer.used < payer.reserved:
                return  # paid for by the ancestors already

    def is_usable(self, now: int) -> bool:
        """Whether the session and all its ancestors are neither closed nor expired at ``now`` (milliseconds)."""
        return all(
            member.state != SessionState.CLOSED and (member.expires_at is None or member.expires_at > now)
            for member in self.lineage
        )


_SESSION_COLUMNS = ", ".join(field.name for field in dataclasses.fields(SessionRow) if field.name != "ancestors")


def load_session(session_id: str) -> SqlProgram[SessionRow | None]:
    """Return a session with its ancestors, or None."""
    row = yield from fetch_one(f"SELECT {_SESSION_COLUMNS} FROM session WHERE id = ?", session_id)
    if row is None:
        return None
    session = SessionRow(*row)
    if session.parent_id is None:
        return session
    parent = yield from load_session(session.parent_id)
    if parent is None:  # both have just been deleted, see `retention`
        return None
    return dataclasses.replace(session, ancestors=parent.lineage)


def require_authorized(now: int, credential: SessionToken | CallProof, session: SessionRow | None) -> SessionRow:
    """Return the session, if the credential is its own and it is open. Raises `Unauthorized`.

    The proof of a message without a routing key is good for the session's default target, which never changes.
    """
    # The comparison runs for unknown ids too, so that its duration does not reveal whether the id exists.
    expected_sha256 = bytes(session.token_sha256 if session is not None else 32)
    is_own = credential.matches(expected_sha256)
    if not is_own and isinstance(credential, CallProof) and session and credential.target == session.default_target:
        is_own = credential.without_target().matches(expected_sha256)
    if not is_own or session is None or not session.is_usable(now):
        raise Unauthorized
    return session


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


def budget_exhausted(session: SessionRow) -> BudgetExhausted:
    """Return the fault of a session without calls left, in the wording of AgentV."""
    return BudgetExhausted(f"Max calls exceeded (limit: {session.max_calls})")


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
