"""Converts between AgentV's proxy API, in all its versions, and contracts. No I/O.

``protocol.md`` §5 lists where we differ from AgentV on purpose; the error messages are AgentV's.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field, ValidationError

from quintain.contracts.invoke import FaultReply, InvokeRequest, OutputMessage, Result
from quintain.contracts.message import Message, describe_validation_error
from quintain.contracts.session import Info
from quintain.errors import BadRequest, Fault, PayloadTooLarge

#: On AgentV's paths a provider's failure is a plain 500, as its clients expect; the code says what it was.
PROVIDER_FAILURES = frozenset(
    {
        "rejected",
        "target_unavailable",
        "provider_error",
        "reply_too_large",
        "worker_lost",
        "timeout",
        "throttled",
    }
)

#: Reserving takes so many calls at once.
MAX_BATCH_ITEMS = 10_000

JsonDict = dict[str, Any]


class AgentVBatchRequest(Message):
    """Questions to be asked at once; one that cannot be read is its own failure."""

    requests: list[Any] = Field(max_length=MAX_BATCH_ITEMS)


class AgentVInfo(Info):
    """A session, whole, under the names by which AgentV's clients of every era read it."""

    provider_label: str
    available_provider_labels: list[str]


class AgentVResult(Result):
    """A result under both names its clients know it by."""

    output_messages: list[OutputMessage]


class AgentVBatchItem(Message):
    """One answer of a batch; of a failed one ``output`` is empty and ``rawText`` begins with ``Error:``, and the
    rest is a `FaultReply`."""

    output: list[OutputMessage]
    output_messages: list[OutputMessage]
    raw_text: str
    error: str | None = None
    code: str | None = None
    status: int | None = None
    retryable: bool | None = None
    charged: bool | None = None
    retry_after_ms: int | None = None
    available_targets: list[str] | None = None


class AgentVBatchResponse(Message):
    """The answers of a batch, in its order."""

    responses: list[AgentVBatchItem]


def read_invoke(value: object) -> InvokeRequest:
    """One invoke request: AgentV's, or ours with messages in place of the question.

    Raises `BadRequest`, with AgentV's sentence where neither is there.
    """
    question = value.get("question") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not (value.get("messages") if question is None else isinstance(question, str)):
        raise BadRequest("Missing required field: question")
    try:
        return InvokeRequest.model_validate(value)
    except ValidationError as error:
        raise BadRequest(describe_validation_error(error)) from None


def read_batch(value: object) -> list[InvokeRequest | Fault]:
    """A batch, item by item: a bad one is its own fault and never loses the others.

    Raises `BadRequest`, `PayloadTooLarge`.
    """
    requests = value.get("requests") if isinstance(value, dict) else None
    if not isinstance(requests, list):
        raise BadRequest("Missing required field: requests (array)")
    if len(requests) > MAX_BATCH_ITEMS:
        raise PayloadTooLarge(f"requests: {len(requests)} are too many; a batch has at most {MAX_BATCH_ITEMS}")
    return [_read_item(item) for item in requests]


def _read_item(value: object) -> InvokeRequest | Fault:
    try:
        return read_invoke(value)
    except Fault as fault:
        return fault


def write_info(info: Info) -> Message:
    """A session as AgentV's clients of every era read it, and ours."""
    return AgentVInfo(
        **info.model_dump(), provider_label=info.target_name, available_provider_labels=info.available_targets
    )


def write_result(result: Result) -> JsonDict:
    """A result under both names its clients know it by: an `AgentVResult`."""
    body = json.loads(result.to_wire())
    return {**body, "outputMessages": body["output"]}


def write_item_fault(fault: Fault) -> JsonDict:
    """A failed item of a batch, in band, as AgentV writes it: an `AgentVBatchItem`."""
    fault_fields = json.loads(FaultReply.from_fault(fault).to_wire())
    return {**fault_fields, "output": [], "outputMessages": [], "rawText": f"Error: {fault.message}"}


def agentv_status(fault: Fault) -> int:
    """The status under which AgentV's clients know a fault."""
    return 500 if fault.code in PROVIDER_FAILURES else fault.status
