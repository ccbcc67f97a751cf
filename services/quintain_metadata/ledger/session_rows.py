"""Reads sessions with their ancestors, says whose they are, and charges calls to their counters."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from quintain.contracts.credentials import CallProof, SessionToken
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.money import dollars_text
from quintain.contracts.session import DEFAULT_WEIGHT, Priority, SessionState
from quintain.errors import BudgetExhausted, Overloaded, Unauthorized
from quintain_metadata.store.base import ForEach, Lookup, SqlProgram


class Funds(NamedTuple):
    """What a session's limit in money has free now, and has left with nothing in flight, in picodollars."""

    payer: str
    free: int
    left: int


class Share(NamedTuple):
    """What the calls of a session have of a quota: together with all sessions of its root, by weight and priority."""

    root_id: str
    weight: int
    priority: Priority


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A row of the table ``session``, and the rows of its ancestors, nearest first.

    ``reserved`` calls of a child are charged to its parent whether they were made or not. All of ``ancestors`` are
    charged with it, and must be open.
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
    tokens_cache_write: int
    tokens_cache_write_1h: int
    tokens_reasoning: int
    reserved: int
    ignore_unsupported: int
    max_body_bytes: int | None
    own_weight: int | None
    own_priority: str | None
    max_cost: int | None
    cost_spent: int
    cost_held: int
    cost_reserved: int
    cost_excess: int
    cost_unknown: int
    cost_estimated: int
    tries: int
    unproven_tries: int
    grader: str | None
    ancestors: tuple[SessionRow, ...] = ()

    @property
    def weight(self) -> int:
        """Its weight among the sessions that share a quota: at most that of each ancestor."""
        weights = [each.own_weight for each in (self, *self.ancestors) if each.own_weight is not None]
        return min(weights, default=DEFAULT_WEIGHT)

    @property
    def priority(self) -> Priority:
        """The priority of its calls, which is at most that of each ancestor."""
        priorities = [Priority(each.own_priority) for each in (self, *self.ancestors) if each.own_priority is not None]
        return max(priorities, key=lambda priority: priority.rank, default=Priority.NORMAL)

    @property
    def share(self) -> Share:
        """What its calls have of a quota."""
        return Share((self, *self.ancestors)[-1].id, self.weight, self.priority)

    @property
    def has_cost_limit(self) -> bool:
        """Whether it or an ancestor has a limit in money."""
        if self.max_cost is not None or not self.ancestors:
            return self.max_cost is not None
        return any(payer.max_cost is not None for payer in self.ancestors)

    @property
    def money_left(self) -> tuple[int, int] | None:
        """What is neither spent nor held of its limit and of its ancestors', and what of that is not reserved: the
        least of each, in picodollars. None where nothing limits its calls.
        """
        limited = [each for each in (self, *self.ancestors) if each.max_cost is not None]
        left = [(each.max_cost or 0) - each.cost_spent - each.cost_held - each.cost_excess for each in limited]
        free = [each - payer.cost_reserved for each, payer in zip(left, limited, strict=True)]
        return (max(0, min(left)), max(0, min(free))) if limited else None

    def narrowed_cost(self, max_cost: int) -> int:
        """Return a limit in picodollars, or that of the session or an ancestor where that is lower."""
        limits = [each.max_cost for each in (self, *self.ancestors) if each.max_cost is not None]
        return min([max_cost, *limits])

    def allows(self, target: str) -> bool:
        """Whether the session may call this target."""
        return self.allowed_targets is None or target in json.loads(self.allowed_targets)

    def available(self, registered: Collection[str]) -> list[str]:
        """Return those of the registered targets that the session may call, in the order in which it names them."""
        if self.allowed_targets is None:
            return list(registered)
        return [name for name in json.loads(self.allowed_targets) if name in registered]

    def require_calls_left(self) -> None:
        """Raise `BudgetExhausted` if a further call would be refused. Admission decides by `Counters`, not by this."""
        for payer in (self, *self.ancestors):
            if payer.used >= payer.max_calls:
                raise budget_exhausted(payer)
            if payer.used < payer.reserved:
                return  # paid for by the ancestors already

    def is_usable(self, now: int) -> bool:
        """Whether the session and all its ancestors are neither closed nor expired at ``now`` (milliseconds)."""
        for member in (self, *self.ancestors):
            if member.state == SessionState.CLOSED or (member.expires_at is not None and member.expires_at <= now):
                return False
        return True

    def require_not_paused(self) -> None:
        """Raise `Overloaded` while the session or an ancestor is paused by its operator."""
        for member in (self, *self.ancestors):
            if member.state == SessionState.PAUSED:
                raise Overloaded("This session is paused by its operator", retry_after_ms=10_000)


_SESSION_COLUMNS = ", ".join(
    each.name.removeprefix("own_") for each in dataclasses.fields(SessionRow) if each.name != "ancestors"
)


#: Sessions and their ancestors.
_LINEAGES_SQL = (
    ", lineage (id, parent_id) AS (SELECT id, parent_id FROM wanted"
    " JOIN session ON session.id = wanted.key1 UNION SELECT parent.id, parent.parent_id FROM lineage"
    " JOIN session AS parent ON parent.id = lineage.parent_id)"
    f" SELECT {_SESSION_COLUMNS} FROM session WHERE id IN (SELECT id FROM lineage) ORDER BY parent_id IS NULL, id"
)


def load_session(session_id: str) -> SqlProgram[SessionRow | None]:
    """Return a session with its ancestors, or None."""
    return (yield from load_sessions([session_id])).get(session_id)


def load_sessions(session_ids: Collection[str]) -> SqlProgram[dict[str, SessionRow]]:
    """Return those of these sessions that there are by id, each with its ancestors, and these too.

    One whose parent was just deleted has none.
    """
    rows = yield Lookup(_LINEAGES_SQL, list(zip(session_ids, strict=True)))
    sessions = {row[0]: SessionRow(*row) for row in rows}
    for session in list(sessions.values()):
        ancestors, parent_id = list[SessionRow](), session.parent_id
        while parent_id in sessions:
            ancestors.append(sessions[parent_id])
            parent_id = ancestors[-1].parent_id
        if ancestors:
            sessions[session.id] = dataclasses.replace(session, ancestors=tuple(ancestors))
    return sessions


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


def cost_limit_reached(limit: int, left: int, amount: int) -> BudgetExhausted:
    """Return the fault of a try for which no money is left: ``left`` of the limit is, in picodollars."""
    return BudgetExhausted(
        f"The limit of {dollars_text(limit)} leaves {dollars_text(max(0, left))}, and this call may cost"
        f" {dollars_text(amount)}"
    )


#: Token counts of one call are limited to this, for each kind.
MAX_TOKENS_PER_CALL = 10**12

#: The kinds of tokens, by the fields of `TokenUsage`; the ledger's columns are named after them.
TOKEN_KINDS = ("input", "output", "cached", "cache_write", "cache_write_1h", "reasoning")


class CostChange(NamedTuple):
    """What is added to a session's amounts of money, in picodollars; ``unknown`` and ``estimated`` count tries."""

    spent: int = 0
    held: int = 0
    reserved: int = 0
    excess: int = 0
    unknown: int = 0
    estimated: int = 0


#: The counters of a session, in the order in which they are kept here: its calls, its tokens, its money, its tries.
_COUNTERS = (
    "used",
    *(f"tokens_{kind}" for kind in TOKEN_KINDS),
    *(f"cost_{name}" for name in CostChange._fields),
    "tries",
    "unproven_tries",
)
_ZEROS = [0] * len(_COUNTERS)
_TRIES_PLACE = _COUNTERS.index("tries")
_COST_PLACE = 1 + len(TOKEN_KINDS)

#: Adds to the counters of a session; the constraint of the table keeps the first within its limit.
_COUNT_SQL = f"UPDATE session SET {', '.join(f'{name} = {name} + ?' for name in _COUNTERS)} WHERE id = ?"
_RESERVED_PLACE = _COST_PLACE + CostChange._fields.index("reserved")


@dataclass(slots=True, eq=False)
class Counters:
    """The counters of sessions: charged in memory, never beyond a limit, until they are written.

    The parent of a session that reserves calls is charged for at least those, since the session was opened.
    """

    _sessions: Mapping[str, SessionRow]
    _added: defaultdict[str, list[int]] = field(default_factory=partial(defaultdict, _ZEROS.copy))
    #: The sessions whose reservations were given back.
    _released: set[str] = field(default_factory=set)

    def used(self, session: SessionRow) -> int:
        """Return the session's counter, with what was added here."""
        return session.used + self._added[session.id][0]

    def charge(self, session: SessionRow, calls: int = 1) -> None:
        """Add calls to the session and its ancestors. Raises `BudgetExhausted`, and adds nothing then."""
        charged = list[tuple[str, int]]()
        for payer in (session, *session.ancestors):
            used = payer.used + self._added[payer.id][0] + calls
            if used > payer.max_calls:
                raise budget_exhausted(payer)
            charged.append((payer.id, calls))
            reserved = 0 if payer.id in self._released else payer.reserved
            calls = max(used, reserved) - max(used - calls, reserved)
        for session_id, count in charged:
            self._added[session_id][0] += count

    def refund(self, session: SessionRow, calls: int = 1) -> None:
        """Subtract calls from the session and its ancestors."""
        for payer in (session, *session.ancestors):
            used = self.used(payer) - calls
            self._added[payer.id][0] -= calls
            reserved = 0 if payer.id in self._released else payer.reserved
            calls = max(used + calls, reserved) - max(used, reserved)

    def release_reserved(self, session: SessionRow) -> None:
        """Give a session's parent back what the session reserved and did not use; of a session that ended."""
        if session.reserved and session.id not in self._released:
            self._released.add(session.id)
            parent = self._sessions[session.ancestors[0].id]
            self.refund(parent, max(0, session.reserved - self.used(session)))

    def add_tokens(self, session: SessionRow, usage: TokenUsage) -> None:
        """Add the token usage of a call to the session and its ancestors."""
        counted = clamp_token_counts(usage)
        for payer in (session, *session.ancestors):
            counts = self._added[payer.id]
            for place, count in enumerate(counted, start=1):
                counts[place] += count

    def cost_left(self, session: SessionRow, lost: Mapping[str, int]) -> tuple[int, int]:
        """Return how many picodollars an attempt may cost at most with nothing in flight, and the limit that says so.

        ``lost`` is what is reserved for lost attempts, by session: it counts as spent.
        """
        left, limit = sys.maxsize, sys.maxsize
        for payer in (session, *session.ancestors):
            if payer.max_cost is not None:
                of_payer = payer.max_cost - self._final_cost(payer) - lost.get(payer.id, 0)
                left, limit = min((left, limit), (of_payer, payer.max_cost))
        return left, limit

    def funds(self, session: SessionRow) -> list[Funds]:
        """Return what each limit in money of a session and its ancestors has, in picodollars."""
        found = list[Funds]()
        for payer in (session, *session.ancestors):
            if payer.max_cost is not None:
                left = payer.max_cost - self._final_cost(payer)
                free = left - payer.cost_reserved - self._added[payer.id][_RESERVED_PLACE]
                found.append(Funds(payer.id, free, left))
        return found

    def reserve_cost(
        self, session: SessionRow, amount: int, awaited: Collection[str] = (), *, is_estimate: bool = False
    ) -> str | None:
        """Reserve an amount of picodollars in the session and its ancestors, where it fits now.

        Returns the id of the one whose money it must wait for, and reserves nothing then; also if it is ``awaited``.
        ``is_estimate``: the try may cost more.
        """
        for payer in (session, *session.ancestors):
            reserved = payer.cost_reserved + self._added[payer.id][_RESERVED_PLACE]
            if payer.max_cost is not None and (
                payer.id in awaited or self._final_cost(payer) + reserved + amount > payer.max_cost
            ):
                return payer.id
        self.add_cost(session, CostChange(reserved=amount, estimated=int(is_estimate)))
        return None

    def _final_cost(self, payer: SessionRow) -> int:
        """Return what of a session's money is spent or held, in picodollars, also beyond what was reserved."""
        added = CostChange(*self._added[payer.id][_COST_PLACE:_TRIES_PLACE])
        known = payer.cost_spent + payer.cost_held + payer.cost_excess
        return known + added.spent + added.held + added.excess

    def add_cost(self, session: SessionRow, change: CostChange) -> None:
        """Add amounts of money to the session and its ancestors."""
        for payer in (session, *session.ancestors):
            counts = self._added[payer.id]
            for place, amount in enumerate(change, start=_COST_PLACE):
                counts[place] += amount

    def add_tries(self, session: SessionRow, tries: int, unproven: int) -> None:
        """Add requests that were sent to providers to the session and its ancestors."""
        for payer in (session, *session.ancestors):
            counts = self._added[payer.id]
            counts[_TRIES_PLACE] += tries
            counts[_TRIES_PLACE + 1] += unproven

    def write(self) -> SqlProgram[None]:
        """Add what was added here to the counters in the ledger."""
        yield ForEach(_COUNT_SQL, [(*counts, session_id) for session_id, counts in self._added.items() if any(counts)])
        if self._released:
            yield ForEach("UPDATE session SET reserved = 0 WHERE id = ?", [(each,) for each in sorted(self._released)])


def clamp_token_counts(usage: TokenUsage) -> tuple[int, ...]:
    """Return the tokens of a call by `TOKEN_KINDS`.

    Each is limited to a plausible range, so that a wrong one does not fail the settle.
    """
    parts = (usage.cached or 0, usage.cache_write or 0, usage.cache_write_1h or 0, usage.reasoning or 0)
    counts = (usage.input, usage.output, *parts)
    if min(counts) >= 0 and max(counts) <= MAX_TOKENS_PER_CALL:
        return counts
    return tuple(max(0, min(count, MAX_TOKENS_PER_CALL)) for count in counts)


def stored_usage(tokens_in: int, tokens_out: int, *others: int) -> TokenUsage:
    """Return token counts that the ledger has, by `TOKEN_KINDS`: null and 0 are one there for what need not be told."""
    told = {kind: count or None for kind, count in zip(TOKEN_KINDS[2:], others, strict=True)}
    return TokenUsage(input=tokens_in, output=tokens_out, **told)
