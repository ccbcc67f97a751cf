"""The attributes of the worker's spans."""

from __future__ import annotations

from quintain.contracts.ledger import Admission
from quintain.telemetry.semconv import ATTEMPT, CALL_COUNT, OUTCOME, AttributeValue


def admission_attributes(admission: Admission | None) -> dict[str, AttributeValue]:
    """Return the span attributes that describe an admission decision; None is a call returned to its queue."""
    if admission is None:
        return {OUTCOME: "given_back"}
    if admission.fault is not None:
        return {OUTCOME: admission.fault.code}
    if admission.replay is not None:
        return {OUTCOME: "replayed"}
    return {OUTCOME: "granted", ATTEMPT: admission.attempt, CALL_COUNT: admission.call_count}
