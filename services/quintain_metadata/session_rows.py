"""Reads sessions with their ancestors, and says whose they are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from quintain.contracts.credentials import CallProof, SessionToken
from quintain.contracts.session import SessionState
from quintain.errors import BudgetExhausted, Unauthorized
from quintain_metadata.store import LockRows, SqlProgram, Statement, fetch_one, filled_up, values_table


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


#: A query for sessions and their ancestors, in the one order in which their rows are locked: children before roots.
_LINEAGES_SQL = (
    "WITH RECURSIVE lineage (id, parent_id) AS (SELECT id, parent_id FROM {wanted} AS wanted"
    " JOIN session ON session.id = wanted.column1 UNION SELECT parent.id, parent.parent_id FROM lineage"
    " JOIN session AS parent ON parent.id = lineage.parent_id)"
    f" SELECT {_SESSION_COLUMNS} FROM session WHERE id IN (SELECT id FROM lineage) ORDER BY parent_id IS NULL, id"
)


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


def lock_sessions(session_ids: Sequence[str]) -> SqlProgram[dict[str, SessionRow]]:
    """Lock sessions and their ancestors until the operation ends; returns those that there are, by id.

    All their calls wait for these rows: what else is locked is locked before.
    """
    filled = filled_up(session_ids)
    rows = yield LockRows(Statement(_LINEAGES_SQL.format(wanted=values_table(filled)), tuple(filled)))
    alone = {row[0]: SessionRow(*row) for row in rows}
    return {session_id: _with_ancestors(session, alone) for session_id, session in alone.items()}


def _with_ancestors(session: SessionRow, sessions: Mapping[str, SessionRow]) -> SessionRow:
    if session.parent_id is None:
        return session
    return dataclasses.replace(session, ancestors=_with_ancestors(sessions[session.parent_id], sessions).lineage)


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


def require_authorized_for(
    now: int, credential: CallProof, session: SessionRow | None, target: str | None
) -> SessionRow:
    """Return the session of a proof that was made without a routing key, if it is for this target of its call.

    The call was admitted for it before. Raises `Unauthorized`.
    """
    return require_authorized(now, credential.without_target(), session if target == credential.target else None)


def budget_exhausted(session: SessionRow) -> BudgetExhausted:
    """Return the fault of a session without calls left, in the wording of AgentV."""
    return BudgetExhausted(f"Max calls exceeded (limit: {session.max_calls})")
