"""What a Python function answers, as the JSON that its process sends: an answer or a failure."""

from __future__ import annotations

import dataclasses
import json

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import describe_validation_error
from quintain.contracts.quota import FailureCause, RateReport, TryOutcome
from quintain_worker.providers.provider import Billing, ProviderAnswer, ProviderFailure, no_bill

_ANSWER = TypeAdapter(ProviderAnswer)


class _Failure(BaseModel):
    """A `ProviderFailure` without the means to ask for its bill."""

    billing: Billing
    retryable: bool
    retry_after_seconds: float | None
    outcome: TryOutcome
    rates: RateReport | None
    cause: FailureCause | None
    is_answered: bool


_FAILURE = TypeAdapter(tuple[FaultReply, _Failure])


def to_wire(value: object) -> bytes:
    """Return a value as JSON on one line, a text whatever its characters."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def from_wire(body: bytes) -> object:
    """Return the value of `to_wire`."""
    value: object = json.loads(body.decode("utf-8", "surrogatepass"))
    return value


def answer_to_wire(answer: ProviderAnswer) -> bytes:
    """Return the fields of an answer that were set, as JSON. Raises `ValueError`, which names one that cannot be."""
    fields: dict[str, object] = {}
    for field in dataclasses.fields(answer):
        if (value := getattr(answer, field.name)) is not field.default:
            try:
                fields[field.name] = to_jsonable_python(value)
            except (PydanticSerializationError, ValueError) as error:
                raise ValueError(f"{field.name}: {error}") from None
    return to_wire(fields)


def answer_from_wire(body: bytes) -> ProviderAnswer:
    """Return an answer of `answer_to_wire`, or the text that is one. Raises `ValueError`, which names a field."""
    fields = from_wire(body)
    if isinstance(fields, str):
        return ProviderAnswer(text=fields)
    try:
        return _ANSWER.validate_python(fields)
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from None


def failure_to_wire(failure: ProviderFailure) -> bytes:
    """Return a failure as JSON. Raises `ValueError`, which names what of it cannot be."""
    # Nobody asks for the bill of what was not billed.
    if failure.ask_bill is not no_bill and failure.billing is not Billing.UNBILLED:
        raise ValueError("ask_bill: it is a function")
    try:
        fault = FaultReply.from_fault(failure.fault)
        said = _Failure.model_validate(failure, from_attributes=True)
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from None
    if FaultReply.from_fault(fault.to_fault()) != fault:
        raise ValueError(f"fault: no fault has the code {fault.code!r} and the status {fault.status}")
    return to_wire(to_jsonable_python((fault, said)))


def failure_from_wire(body: bytes) -> ProviderFailure:
    """Return the failure of `failure_to_wire`."""
    fault, said = _FAILURE.validate_python(from_wire(body))
    fields = dict(said)
    cause, is_answered = fields.pop("cause"), fields.pop("is_answered")
    failure = ProviderFailure(fault.to_fault(), **fields)
    failure.cause, failure.is_answered = cause, is_answered
    return failure
