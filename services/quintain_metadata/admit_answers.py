"""Answers that the metadata service gives to admits by itself, and the spans of its decisions."""

from __future__ import annotations

from quintain.contracts.credentials import public_id
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit
from quintain.errors import BudgetUnavailable, Fault
from quintain.observe import logs
from quintain.observe.semconv import ledger_admit_span
from quintain.observe.spans import record_finished_span, valid_traceparent
from quintain.rpc.server import log_defect
from quintain_metadata.ledger.calls import NotOwner
from quintain_metadata.ledger.decisions import Deferred


def decision_of(admit: Admit, error: Exception) -> Admission | None:
    """Return the answer to an admit that was not decided otherwise; None where its worker is to repeat it."""
    if isinstance(error, BudgetUnavailable | NotOwner):
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


def record_span(admit: Admit, decision: Admission, *, seconds: float) -> None:
    """Record the decision as a span of the call's trace, if the call has one."""
    traceparent = valid_traceparent(admit.traceparent)
    if traceparent is None:
        return
    fault_code = None if decision.fault is None else decision.fault.code
    is_undecided = not (decision.is_replay or decision.is_grant)
    outcome = fault_code or ("asked_again" if is_undecided else "replayed" if decision.is_replay else "granted")
    record_finished_span(
        ledger_admit_span(admit.request_id, outcome),
        duration_seconds=seconds,
        parent=traceparent,
        error_type=fault_code,
    )
