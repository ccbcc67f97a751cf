"""HTTP ⇄ contracts, pure: AgentV's proxy API in all its dialects, and faults as its clients know them.

``protocol.md`` §5 names the places where we differ from AgentV on purpose; the sentences are AgentV's.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from quintain.contracts.invoke import FaultReply, InvokeRequest, Result
from quintain.contracts.message import explain
from quintain.contracts.metadata import Info
from quintain.errors import BadRequest, Fault

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

Body = dict[str, Any]


def read_json(body: bytes) -> object:
    """The value of a JSON body. Raises `BadRequest`."""
    try:
        return json.loads(body)
    except RecursionError:
        raise BadRequest("The body is not JSON that anybody nests so deep") from None
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None


def read_invoke(value: object) -> InvokeRequest:
    """One invoke request of AgentV's. Raises `BadRequest` with AgentV's sentence."""
    if not isinstance(value, dict) or not isinstance(value.get("question"), str) or not value["question"]:
        raise BadRequest("Missing required field: question")
    try:
        return InvokeRequest.model_validate(value)
    except ValidationError as error:
        raise BadRequest(explain(error)) from None


def read_batch(value: object) -> list[InvokeRequest | Fault]:
    """A batch, item by item: a bad one is its own fault and never loses the others. Raises `BadRequest`."""
    requests = value.get("requests") if isinstance(value, dict) else None
    if not isinstance(requests, list):
        raise BadRequest("Missing required field: requests (array)")
    return [_item(item) for item in requests]


def _item(value: object) -> InvokeRequest | Fault:
    try:
        return read_invoke(value)
    except Fault as fault:
        return fault


def write_info(info: Info) -> Body:
    """A session as AgentV's clients of every era read it."""
    return {
        "targetName": info.target_name,
        "providerLabel": info.target_name,
        "maxCalls": info.max_calls,
        "callCount": info.call_count,
        "availableTargets": info.available_targets,
        "availableProviderLabels": info.available_targets,
    }


def write_result(result: Result) -> Body:
    """A result under both names its clients know it by."""
    body = json.loads(result.to_wire())
    return {**body, "outputMessages": body["output"]}


def write_item_fault(fault: Fault) -> Body:
    """A failed item of a batch, in band, as AgentV writes it."""
    said = FaultReply.of(fault)
    return {"output": [], "outputMessages": [], "rawText": f"Error: {said.error}", "code": said.code}


def write_fault(fault: Fault) -> tuple[int, Body]:
    """A fault as a status and a body."""
    body: Body = json.loads(FaultReply.of(fault).to_wire())
    return (500 if fault.code in PROVIDER_FAILURES else fault.status), body
