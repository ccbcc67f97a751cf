"""What a Python function answers, as the JSON that its process sends: an answer or a failure."""

from __future__ import annotations

import dataclasses
import json

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import describe_validation_error
from quintain.contracts.quota import FailureCause, RateReport, TryOutcome
from quintain_worker.providers.provider import Billing, ProviderAnswer, ProviderFailure

_ANSWER = TypeAdapter(ProviderAnswer)


class _Failure(BaseModel):
    """A `ProviderFailure` without the means to ask for its bill."""

    fault: FaultReply
    billing: Billing
    retryable: bool
    retry_after_seconds: float | None
    outcome: TryOutcome
    rates: RateReport | None
    cause: FailureCause | None
    is_answered: bool


def text_to_wire(text: str) -> bytes:
    """Return a text as JSON on one line, whatever its characters."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


def text_from_wire(body: bytes) -> str:
    """Return the text of `text_to_wire`."""
    text: str = json.loads(body.decode("utf-8", "surrogatepass"))
    return text


def answer_to_wire(answer: ProviderAnswer) -> bytes:
    """Return the fields of an answer that were set, as JSON. Raises `ValueError`, which names one that cannot be."""
    fields: dict[str, object] = {}
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if value is field.default:
            continue
        try:
            fields[field.name] = to_jsonable_python(value)
        except (PydanticSerializationError, ValueError) as error:
            raise ValueError(f"{field.name}: {error}") from None
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def answer_from_wire(body: bytes) -> ProviderAnswer:
    """Return the answer of `answer_to_wire` or `text_to_wire`. Raises `ValueError`, which names a field of no use."""
    fields = json.loads(body.decode("utf-8", "surrogatepass"))
    if isinstance(fields, str):
        return ProviderAnswer(text=fields)
    try:
        return _ANSWER.validate_python(fields)
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from None


def failure_to_wire(failure: ProviderFailure) -> bytes:
    """Return a failure as JSON."""
    reply = _Failure(
        fault=FaultReply.from_fault(failure.fault),
        billing=failure.billing,
        retryable=failure.retryable,
        retry_after_seconds=failure.retry_after_seconds,
        outcome=failure.outcome,
        rates=failure.rates,
        cause=failure.cause,
        is_answered=failure.is_answered,
    )
    return json.dumps(to_jsonable_python(reply), ensure_ascii=False).encode("utf-8", "surrogatepass")


def failure_from_wire(body: bytes) -> ProviderFailure:
    """Return the failure of `failure_to_wire`. Raises `ValueError`."""
    reply = _Failure.model_validate(json.loads(body.decode("utf-8", "surrogatepass")))
    failure = ProviderFailure(
        reply.fault.to_fault(),
        reply.billing,
        retryable=reply.retryable,
        retry_after_seconds=reply.retry_after_seconds,
        outcome=reply.outcome,
        rates=reply.rates,
    )
    failure.cause, failure.is_answered = reply.cause, reply.is_answered
    return failure
