"""Holding the ledger against itself: every counter recomputed from its calls, and every call told. As `Steps`."""

from __future__ import annotations

from dataclasses import dataclass

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.message import Message
from quintain_metadata.lifecycle import COUNTED, State
from quintain_metadata.sessions import FAMILY
from quintain_metadata.steps import Row, Steps, run

#: How many calls one page of an export has.
PAGE = 1000

_COUNTED = ", ".join(f"'{state}'" for state in COUNTED)

#: Every session beside each of its ancestors, itself among them.
_LINEAGE = (
    "WITH RECURSIVE lineage (id, ancestor) AS (SELECT id, id FROM session UNION ALL"
    " SELECT lineage.id, session.parent_id FROM lineage JOIN session ON session.id = lineage.ancestor"
    " WHERE session.parent_id IS NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that must hold: a sentence, and the query whose every row breaks it (its subject, then facts)."""

    sentence: str
    query: str


RULES = (
    Rule(
        "a session's counter is the number of its family's calls that count, and within its limit",
        f"{_LINEAGE} SELECT session.id, session.used, session.max_calls, count(call.request_id) FROM session"
        " JOIN lineage ON lineage.ancestor = session.id"
        f" LEFT JOIN call ON call.session_id = lineage.id AND call.state IN ({_COUNTED})"
        " GROUP BY session.id, session.used, session.max_calls"
        " HAVING session.used <> count(call.request_id) OR session.used > session.max_calls OR session.used < 0",
    ),
    Rule(
        "a running call is held by one of its own attempts",
        "SELECT call.session_id, call.request_id FROM call LEFT JOIN attempt ON attempt.id = call.attempt_id"
        " AND attempt.session_id = call.session_id AND attempt.request_id = call.request_id"
        f" WHERE call.state = '{State.RUNNING}' AND attempt.id IS NULL",
    ),
    Rule(
        "a call has as many attempts as it says",
        "SELECT call.session_id, call.request_id, call.attempts, count(attempt.id) FROM call"
        " LEFT JOIN attempt ON attempt.session_id = call.session_id AND attempt.request_id = call.request_id"
        " AND attempt.state <> 'void' GROUP BY call.session_id, call.request_id, call.attempts"
        " HAVING call.attempts <> count(attempt.id)",
    ),
    Rule(
        "what is kept as in doubt says that it was charged",
        "SELECT session_id, request_id FROM call"
        f" WHERE state = '{State.IN_DOUBT}' AND (fault IS NULL OR fault NOT LIKE '%\"charged\":true%')",
    ),
    Rule(
        "what was given back was proven unbilled by every attempt",
        "SELECT DISTINCT call.session_id, call.request_id FROM call JOIN attempt"
        " ON attempt.session_id = call.session_id AND attempt.request_id = call.request_id"
        f" WHERE call.state = '{State.REFUNDED}' AND attempt.state NOT IN ('proven', 'void')",
    ),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule, and where: the row's values, its subject first."""

    rule: str
    facts: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """What was looked at, and what was found."""

    sessions: int
    calls: int
    findings: tuple[Finding, ...]


class CallRecord(Message):
    """One call as ``calls.jsonl`` tells it. Times are milliseconds since the epoch; ``tokenUsage`` is there where the
    provider said it."""

    session_id: str
    request_id: str
    target: str
    state: str
    attempts: int
    call_count: int
    deadline: int
    created_at: int
    updated_at: int
    token_usage: TokenUsage | None = None
    fault_code: str | None = None


#: The columns of a call that are told as they are, and those of what it took.
_TOLD = tuple(name for name in CallRecord.model_fields if name not in {"token_usage", "fault_code"})
_TOKENS = ("tokens_input", "tokens_output", "tokens_cached")


def verify_counters() -> Steps[Audit]:
    """Hold every rule against the whole ledger, in one snapshot. Running calls are clean."""
    findings: list[Finding] = []
    for rule in RULES:
        rows = yield from run(rule.query)
        findings += [Finding(rule.sentence, tuple(row)) for row in rows]
    ((sessions, calls),) = yield from run("SELECT (SELECT count(*) FROM session), (SELECT count(*) FROM call)")
    return Audit(sessions, calls, tuple(findings))


def export_calls(after: tuple[str, str], *, session_id: str | None = None) -> Steps[list[CallRecord]]:
    """The next page of calls after this (session id, request id), in that order; of one session and its descendants
    where it is named."""
    beginning, family = ("", "") if session_id is None else (FAMILY, " AND session_id IN (SELECT id FROM family)")
    rows = yield from run(
        f"{beginning} SELECT {', '.join((*_TOLD, *_TOKENS))}, fault FROM call"
        f" WHERE (session_id > ? OR (session_id = ? AND request_id > ?)){family}"
        " ORDER BY session_id, request_id LIMIT ?",
        *([] if session_id is None else [session_id]),
        *(after[0], after[0], after[1], PAGE),
    )
    return [_record(row) for row in rows]


def _record(row: Row) -> CallRecord:
    told: dict[str, object] = dict(zip(_TOLD, row, strict=False))
    tokens_in, tokens_out, cached, fault = row[len(_TOLD) :]
    if tokens_in is not None:
        told["token_usage"] = TokenUsage(input=tokens_in, output=tokens_out, cached=cached or None)
    return CallRecord.model_validate({**told, "fault_code": _code(fault)})


def _code(fault: str | None) -> str | None:
    return None if fault is None else str(FaultCode.from_wire(fault).code)


class FaultCode(Message):
    """Of a kept fault, the code alone: its sentence may quote a provider."""

    code: str
