"""What a grader reads on stdin: the fields of every era of AgentV's contract at once, in snake_case. Pure.

An unchanged AgentV grader finds its own fields, with the types its own SDK checks: ``expected_output`` and
``input`` are lists of messages, ``output`` is text, and what may not be null is left out where it is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import JsonValue

from quintain.contracts.invoke import ChatMessage, OutputMessage, Result
from quintain.graders import Case
from quintain_runner.prices import Price
from quintain_runner.tool_calls import write_message

JsonObject = dict[str, JsonValue]

#: Nobody here measures these; AgentV writes null as well where it does not.
_UNKNOWN = ("trace", "trace_summary", "file_changes", "workspace_path", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is known of an answer beside itself: when it came, what its target's tokens cost, and the file that holds
    it as JSON, where it is long. None where nobody knows."""

    answered_at: datetime | None = None
    price: Price | None = None
    output_path: str | None = None


NOTHING = Beside()


def grader_input(case: Case, result: Result, beside: Beside = NOTHING) -> JsonObject:
    """The object a grader reads: the case, what the target answered, and what was expected."""
    asked, said = _conversation(case), _messages(result.output)
    expected = _expected_messages(case)
    usage = result.token_usage
    fields: JsonObject = {
        "question": case.asked,
        "input": asked,
        "input_messages": asked,
        "output": result.raw_text,
        "candidate_answer": result.raw_text,
        "answer": result.raw_text,
        "output_messages": said,
        "messages": said,
        "expected_output": expected,
        "expected_messages": expected,
        "criteria": _own_text(case, "criteria") or expected_text(case) or "",
        "expected_outcome": _own_text(case, "expected_outcome") or expected_text(case) or "",
        "input_files": _own_paths(case, "input_files"),
        "guideline_files": _own_paths(case, "guideline_files"),
        "metadata": case.metadata,
        "token_usage": None if usage is None else usage.model_dump(by_alias=True, exclude_none=True),
        "duration_ms": result.duration_ms,
        "cost_usd": None if usage is None or beside.price is None else float(beside.price.of(usage)),
        **_times(result, beside.answered_at),
        **dict.fromkeys(_UNKNOWN),
    }
    reference = _own_text(case, "reference_answer") or expected_text(case)
    left_out = {"reference_answer": reference, "output_path": beside.output_path}
    return {**fields, **{name: value for name, value in left_out.items() if value is not None}}


def _times(result: Result, answered_at: datetime | None) -> JsonObject:
    """When the target began and ended, as JavaScript writes a time."""
    if answered_at is None:
        return {"start_time": None, "end_time": None}
    began = answered_at - timedelta(milliseconds=result.duration_ms)
    return {"start_time": _iso(began), "end_time": _iso(answered_at)}


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def expected_text(case: Case) -> str | None:
    """What the row expects, as text; None where it expects nothing."""
    if case.expected is None or isinstance(case.expected, str):
        return case.expected
    return json.dumps(case.expected, ensure_ascii=False)


def _conversation(case: Case) -> list[JsonValue]:
    turns = case.messages or [ChatMessage(role="user", content=case.asked)]
    if case.system_prompt:
        turns = [ChatMessage(role="system", content=case.system_prompt), *turns]
    return _messages(turns)


def _messages(messages: Sequence[ChatMessage | OutputMessage]) -> list[JsonValue]:
    return [write_message(message) for message in messages]


def _expected_messages(case: Case) -> list[JsonValue]:
    for field in ("expected_output", "expected_messages"):
        own = case.metadata.get(field)
        if isinstance(own, list) and all(isinstance(item, dict) and "role" in item for item in own):
            return own
        if isinstance(own, str):
            return [{"role": "assistant", "content": own}]
    if case.expected is None:
        return []
    # AgentV's messages hold text or objects; a bare number or list travels as its JSON.
    content = case.expected if isinstance(case.expected, Mapping) else expected_text(case)
    return [{"role": "assistant", "content": content}]


def _own_text(case: Case, field: str) -> str | None:
    own = case.metadata.get(field)
    return own if isinstance(own, str) else None


def _own_paths(case: Case, field: str) -> list[JsonValue]:
    own = case.metadata.get(field)
    return own if isinstance(own, list) and all(isinstance(path, str) for path in own) else []
