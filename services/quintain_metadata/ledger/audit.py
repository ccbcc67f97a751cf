"""Verifies the ledger's invariants by recomputing every counter from the calls, and exports calls."""

from __future__ import annotations

from dataclasses import dataclass

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.session import SessionState
from quintain_metadata.ledger.call_rows import HOLDER_WITHOUT_ROW
from quintain_metadata.ledger.lifecycle import COUNTED_STATES, CallState
from quintain_metadata.ledger.replies import REPLY_RETENTION_MS
from quintain_metadata.ledger.session_rows import TOKEN_KINDS, stored_usage
from quintain_metadata.ledger.usage import FAMILY_CTE
from quintain_metadata.store.base import Row, SqlProgram, execute

#: The number of calls on one page of an export.
PAGE_SIZE = 1000

_COUNTED_STATES = ", ".join(f"'{state}'" for state in COUNTED_STATES)

#: What each session charges its parent: the calls of it and its descendants, at least those that it reserved.
_CHILDREN_CTE = (
    "WITH children (id, used) AS (SELECT parent_id, sum(CASE WHEN reserved > used THEN reserved ELSE used END)"
    " FROM session WHERE parent_id IS NOT NULL GROUP BY parent_id),"
    " own (id, used) AS (SELECT session_id, count(*) FROM call"
    f" WHERE state IN ({_COUNTED_STATES}) GROUP BY session_id)"
)


#: The counters of a session that its calls have too.
_COUNTED_BY_CALL = {
    "session.tries": "tries",
    "session.unproven_tries": "unproven",
    "cost_held": "held",
    "(cost_spent + cost_excess)": "billed",
    "cost_unknown": "unknown",
}


@dataclass(frozen=True, slots=True)
class AuditRule:
    """One invariant: its description, and a query for the rows that violate it, each with its subject first."""

    description: str
    query: str


AUDIT_RULES = (
    AuditRule(
        "a session's counter equals the charged calls of it and its descendants, with what those reserved, and is"
        " within its limit",
        f"{_CHILDREN_CTE} SELECT session.id, session.used, session.max_calls,"
        " CAST(coalesce(own.used, 0) + coalesce(children.used, 0) AS bigint) FROM session"
        " LEFT JOIN own ON own.id = session.id LEFT JOIN children ON children.id = session.id"
        " WHERE session.used <> coalesce(own.used, 0) + coalesce(children.used, 0)"
        " OR session.used > session.max_calls OR session.used < 0",
    ),
    AuditRule(
        "the tries and the money of a session are those of the calls of it and its descendants, but for deleted ones;"
        " what it reserves is that of the running ones, and all is within its limit",
        "WITH RECURSIVE member (root, id) AS (SELECT id, id FROM session UNION ALL SELECT member.root, session.id"
        " FROM session JOIN member ON session.parent_id = member.id),"
        " counted AS (SELECT member.root AS id, sum(tries) AS tries, sum(unproven_tries) AS unproven,"
        f" sum(CASE WHEN state = '{CallState.RUNNING}' THEN cost ELSE 0 END) AS reserved, sum(held) AS held,"
        " sum(billed) AS billed, sum(unknown) AS unknown"
        " FROM call JOIN member ON member.id = call.session_id GROUP BY member.root)"
        " SELECT session.id, session.tries, session.unproven_tries, cost_spent, cost_held, cost_reserved, cost_excess,"
        " cost_unknown, max_cost FROM session LEFT JOIN counted ON counted.id = session.id"
        " WHERE cost_reserved <> coalesce(counted.reserved, 0) OR cost_spent + cost_held + cost_reserved > max_cost"
        " OR session.unproven_tries > session.tries"
        + "".join(
            f" OR {kept} < coalesce(counted.{made}, 0) OR session.parent_id IS NULL"
            f" AND session.state <> '{SessionState.CLOSED}' AND {kept} <> coalesce(counted.{made}, 0)"
            for kept, made in _COUNTED_BY_CALL.items()
        ),
    ),
    AuditRule(
        "only a child session that is not closed reserves calls",
        "SELECT id, reserved, max_calls, state FROM session WHERE reserved < 0"
        f" OR reserved > 0 AND (parent_id IS NULL OR state = '{SessionState.CLOSED}')",
    ),
    AuditRule(
        "a running call is held by one of its own attempts",
        "SELECT call.session_id, call.request_id FROM call LEFT JOIN attempt ON attempt.id = call.attempt_id"
        f" WHERE call.state = '{CallState.RUNNING}' AND (call.attempt_id IS NULL OR attempt.state IN ('proven', 'void')"
        " OR attempt.session_id <> call.session_id OR attempt.request_id <> call.request_id)",
    ),
    AuditRule(
        "a call's attempt count equals the number of its attempts",
        f"WITH held AS (SELECT session_id, request_id, attempts, CASE WHEN {HOLDER_WITHOUT_ROW} THEN 1 ELSE 0 END"
        " AS holders FROM call)"
        " SELECT held.session_id, held.request_id, held.attempts, held.holders + count(attempt.id)"
        " FROM held LEFT JOIN attempt ON attempt.session_id = held.session_id AND attempt.request_id = held.request_id"
        " AND attempt.state NOT IN ('void', 'retried')"
        " GROUP BY held.session_id, held.request_id, held.attempts, held.holders"
        " HAVING held.attempts <> held.holders + count(attempt.id)",
    ),
    AuditRule(
        "a call in doubt has a fault that says that it was charged",
        "SELECT session_id, request_id FROM call"
        f" WHERE state = '{CallState.IN_DOUBT}' AND (fault IS NULL OR fault NOT LIKE '%\"charged\":true%')",
    ),
    AuditRule(
        "every attempt of a refunded call is proven unbilled",
        f"SELECT session_id, request_id FROM call WHERE state = '{CallState.REFUNDED}' AND ({HOLDER_WITHOUT_ROW}"
        " OR EXISTS (SELECT 1 FROM attempt WHERE attempt.session_id = call.session_id"
        " AND attempt.request_id = call.request_id AND attempt.state NOT IN ('proven', 'void')))",
    ),
    AuditRule(
        "a stored reply is found by the last change of its call",
        "SELECT reply.session_id, reply.request_id FROM reply LEFT JOIN call ON call.session_id = reply.session_id"
        f" AND call.request_id = reply.request_id AND call.updated_at + {REPLY_RETENTION_MS} = reply.expires_at"
        " WHERE call.session_id IS NULL",
    ),
)


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A violated rule, and the values of the row that violates it, its subject first."""

    rule: str
    facts: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The numbers of sessions and calls that were checked, and the findings."""

    sessions: int
    calls: int
    findings: tuple[AuditFinding, ...]


class ParentCall(Message):
    """The call whose agent made others for its answer."""

    session_id: str
    request_id: str


class CallRecord(Message):
    """One call as a line of ``calls.jsonl``.

    ``calls`` is what it counts for against the budget: 1, or 0 if it is not charged. Times are milliseconds since the
    epoch; ``token_usage`` is set where the provider reported it. ``parent`` is the call whose agent made this one.
    """

    session_id: str
    request_id: str
    target: str
    state: str
    attempts: int
    calls: int
    deadline: int
    created_at: int
    updated_at: int
    token_usage: TokenUsage | None = None
    fault_code: str | None = None
    parent: ParentCall | None = None


#: The columns of a call that are exported unchanged, and those of its token usage.
_EXPORTED_COLUMNS = tuple(
    name for name in CallRecord.model_fields if name not in {"calls", "token_usage", "fault_code", "parent"}
)
#: The session and the id of the call for whose agent a call's session, or the nearest such ancestor, was opened.
_PARENT = (
    "(WITH RECURSIVE up (parent_id, opened_for) AS (SELECT parent_id, opened_for FROM session"
    " WHERE session.id = call.session_id UNION ALL SELECT session.parent_id, session.opened_for FROM up"
    " JOIN session ON session.id = up.parent_id WHERE up.opened_for IS NULL)"
    " SELECT parent_id || ' ' || opened_for FROM up WHERE opened_for IS NOT NULL)"
)
_TOKEN_COLUMNS = tuple(f"tokens_{kind}" for kind in TOKEN_KINDS)


def verify_counters() -> SqlProgram[AuditReport]:
    """Check every rule against the whole ledger, in one snapshot. Running calls violate no rule."""
    findings: list[AuditFinding] = []
    for rule in AUDIT_RULES:
        rows = yield from execute(rule.query)
        findings += [AuditFinding(rule.description, tuple(row)) for row in rows]
    ((sessions, calls),) = yield from execute("SELECT (SELECT count(*) FROM session), (SELECT count(*) FROM call)")
    return AuditReport(sessions, calls, tuple(findings))


def export_page(after: tuple[str, str], *, session_id: str | None = None) -> SqlProgram[list[CallRecord]]:
    """Return the next page of calls after this (session id, request id), in that order.

    ``session_id`` limits the export to one session and its descendants.
    """
    cte, session_filter = ("", "") if session_id is None else (FAMILY_CTE, " AND session_id IN (SELECT id FROM family)")
    rows = yield from execute(
        f"{cte} SELECT {', '.join((*_EXPORTED_COLUMNS, *_TOKEN_COLUMNS))}, fault, {_PARENT} FROM call"
        f" WHERE (session_id > ? OR (session_id = ? AND request_id > ?)){session_filter}"
        " ORDER BY session_id, request_id LIMIT ?",
        *([] if session_id is None else [session_id]),
        *(after[0], after[0], after[1], PAGE_SIZE),
    )
    return [_record_from_row(row) for row in rows]


def _record_from_row(row: Row) -> CallRecord:
    fields: dict[str, object] = dict(zip(_EXPORTED_COLUMNS, row, strict=False))
    *tokens, fault, parent = row[len(_EXPORTED_COLUMNS) :]
    if parent is not None:
        fields["parent"] = dict(zip(ParentCall.model_fields, parent.split(" ", 1), strict=True))
    if tokens[0] is not None:
        fields["token_usage"] = stored_usage(*tokens)
    calls = int(fields["state"] in COUNTED_STATES)
    return CallRecord.model_validate({**fields, "calls": calls, "fault_code": _fault_code(fault)})


def _fault_code(fault: str | None) -> str | None:
    return None if fault is None else str(FaultCode.from_wire(fault).code)


class FaultCode(Message):
    """The code of a stored fault; its message is not exported, because it may quote a provider."""

    code: str
