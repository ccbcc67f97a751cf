"""Answers that the metadata service gives to admits by itself, and the spans of its decisions."""

from __future__ import annotations

import logging

from quintain.contracts.credentials import public_id
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit
from quintain.errors import BudgetUnavailable, Fault
from quintain.observe import logs
from quintain.observe.semconv import ledger_admit_span
from quintain.observe.spans import record_finished_span, valid_traceparent
from quintain.rpc.server import log_defect
from quintain_metadata.ledger.decisions import Deferred

log = logging.getLogger(__name__)


def decision_of(admit: Admit, error: Exception) -> Admission | None:
    """Return the answer to an admit that was not decided otherwise; None where its worker is to repeat it."""
    if isinstance(error, BudgetUnavailable):
        return None
    if isinstance(error, Fault):
        return refusal_of(admit, error)
    # A defect in one admit must not affect the others of its batch.
    with logs.log_context(
        request_id=admit.request_id, session_id=admit.session_id or public_id(admit.token), target=admit.target
    ):
        return refusal_of(admit, log_defect(error, f"admitting call {admit.request_id!r}"))


def with_deadline(admit: Admit, deferred: Deferred) -> Admit:
    """Return the admit with its deadline; one that names none gets the deadline computed at its first decision."""
    return admit if admit.deadline is not None else admit.model_copy(update={"deadline": deferred.deadline})


def refusal_of(admit: Admit, fault: Fault) -> Admission:
    """Return the answer that refuses an admit."""
    return Admission(attempt_id=admit.attempt_id, fault=FaultReply.from_fault(fault))


def note_decision(admit: Admit, decision: Admission | Deferred | None, *, seconds: float) -> None:
    """Log a decision at debug, and record a final one as a span of the call's trace, if the call has one."""
    if log.isEnabledFor(logging.DEBUG):
        said = f"held, {decision.reason.name.lower()}" if isinstance(decision, Deferred) else _outcome_of(decision)
        session_id = admit.session_id or public_id(admit.token)
        with logs.log_context(request_id=admit.request_id, session_id=session_id, target=admit.target):
            log.debug("The admit of attempt %s: %s", admit.attempt_id, said)
    if not isinstance(decision, Admission) or (traceparent := valid_traceparent(admit.traceparent)) is None:
        return
    record_finished_span(
        ledger_admit_span(admit.request_id, _outcome_of(decision)),
        duration_seconds=seconds,
        parent=traceparent,
        error_type=None if decision.fault is None else decision.fault.code,
    )


def _outcome_of(decision: Admission | None) -> str:
    if decision is None or not (decision.fault or decision.is_replay or decision.is_grant):
        return "asked_again"
    return decision.fault.code if decision.fault is not None else "replayed" if decision.is_replay else "granted"
