"""Converts between AgentV's proxy API, in all its versions, and Quintain's messages. No I/O.

``protocol.md`` §5 lists the intentional differences from AgentV; the error messages are AgentV's.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field, ValidationError, computed_field

from quintain.contracts.invoke import FaultReply, InvokeRequest, OutputMessage, Result
from quintain.contracts.message import Message, describe_validation_error
from quintain.contracts.session import Info
from quintain.errors import BadRequest, Fault, PayloadTooLarge

#: Codes of provider failures, which AgentV's API answers with status 500; the body has the code.
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

#: The maximum number of requests in a batch: that of one reservation.
MAX_BATCH_ITEMS = 10_000

_KNOWN_KEYS = frozenset(name for field, info in InvokeRequest.model_fields.items() for name in (field, info.alias))

JsonDict = dict[str, Any]


class AgentVBatchRequest(Message):
    """Several requests to make concurrently. An invalid request fails by itself; the others are made."""

    requests: list[Any] = Field(max_length=MAX_BATCH_ITEMS)


class AgentVInfo(Info):
    """A session and its counters, with the field names of all versions of AgentV."""

    provider_label: str
    available_provider_labels: list[str]


class AgentVResult(Result):
    """The result of a call. ``outputMessages`` are the messages of ``output`` again."""

    output_messages: list[OutputMessage]

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorator of a property
    @property
    def raw_text(self) -> str:
        """The answer's text."""
        return super().raw_text


class AgentVBatchItem(Message):
    """One response of a batch.

    For a failed request ``output`` is empty, ``rawText`` begins with ``Error:``, and the other fields describe the
    error.
    """

    output: list[OutputMessage]
    output_messages: list[OutputMessage]
    raw_text: str
    error: str | None = None
    code: str | None = None
    status: int | None = None
    retryable: bool | None = None
    charged: bool | None = None
    charge_unknown: bool | None = None
    retry_after_ms: int | None = None
    available_targets: list[str] | None = None


class AgentVBatchResponse(Message):
    """The responses of a batch, in the order of its requests."""

    responses: list[AgentVBatchItem]


def read_invoke(value: object) -> InvokeRequest:
    """Parse one request: AgentV's, with a question, or Quintain's, with messages in place of the question.

    Raises `BadRequest`, with AgentV's message if the request has neither.
    """
    question = value.get("question") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not (value.get("messages") if question is None else isinstance(question, str)):
        raise BadRequest("Missing required field: question")
    named = {name: _as_text(value[name]) for name in ("target", "provider") if name in value}
    try:
        return InvokeRequest.model_validate({**value, **named})
    except ValidationError as error:
        raise BadRequest(describe_validation_error(error)) from None


def _as_text(target: object) -> object:
    """Return a number or a boolean as AgentV writes it: `true` is a target that is not known, and no wrong type."""
    return json.dumps(target) if isinstance(target, bool | int | float) else target


def ignored_keys(value: object) -> set[str]:
    """Return the keys of a request that have no meaning here, and are ignored as AgentV ignores them."""
    if not isinstance(value, dict):
        return set()
    return {str(key) for key, item in value.items() if item is not None and key not in _KNOWN_KEYS}


def read_batch(value: object) -> list[InvokeRequest | Fault]:
    """Parse a batch. An invalid request becomes a `Fault` in its place, so that the others can be made.

    Raises `BadRequest` if there is no list of requests, and `PayloadTooLarge` if it has more than `MAX_BATCH_ITEMS`.
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
    """Return a session with the field names of all versions of AgentV."""
    return AgentVInfo(
        **info.model_dump(), provider_label=info.target_name, available_provider_labels=info.available_targets
    )


def write_result(result: Result) -> AgentVResult:
    """Return a result with the field names of all versions of AgentV."""
    return AgentVResult.unchecked(**vars(result), output_messages=result.output)


def write_item_fault(fault: Fault) -> JsonDict:
    """Return the fault of a failed batch item as the JSON object of an `AgentVBatchItem`."""
    fault_fields = json.loads(FaultReply.from_fault(fault).to_wire())
    return {**fault_fields, "output": [], "outputMessages": [], "rawText": f"Error: {fault.message}"}


def agentv_status(fault: Fault) -> int:
    """Return the HTTP status with which AgentV's clients expect a fault."""
    return 500 if fault.code in PROVIDER_FAILURES else fault.status
