"""What a grader reads on stdin: the fields of every era of AgentV's contract at once, in snake_case. Pure.

An unchanged AgentV grader finds its own fields, with the types its own SDK checks: ``expected_output`` and
``input`` are lists of messages, ``messages`` is the whole conversation and ``output_messages`` the answer's part of
it, ``output`` is text, and what may not be null is left out where it is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import JsonValue

from quintain.contracts.invoke import ChatMessage, OutputMessage, Result
from quintain.graders import Case
from quintain_runner.grader_images import Keep, with_files
from quintain_runner.grader_trace import JsonObject, summary_of, trace_of
from quintain_runner.prices import Price
from quintain_runner.tool_calls import write_message

#: An answer whose JSON has more characters is given as a file, too: as long as AgentV's are.
LONG_ANSWER = 50_000

#: A target works elsewhere: in which folder, and what it changed there, nobody here knows. Nor does AgentV of most.
_UNKNOWN = ("file_changes", "workspace_path", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is known of an answer beside itself: when it came, and what its target's tokens cost. None where nobody
    knows."""

    answered_at: datetime | None = None
    price: Price | None = None


def grader_input(case: Case, result: Result, beside: Beside, keep: Keep) -> JsonObject:
    """The object a grader reads: the case, what the target answered, and what was expected.

    ``keep`` is given what it reads as files: images that stand in messages as data, and a long answer's JSON.
    """
    conversation, said = _messages(_turns(case), keep), _messages(result.output, keep)
    asked: list[JsonValue] = [*conversation]
    answered: list[JsonValue] = [*said]
    expected = _expected_messages(case, keep)
    measured = _measured(result, beside)
    known: JsonObject = {name: value for name, value in measured.items() if value is not None}
    about: JsonObject = {**known, "metadata": {"target": result.target, "eval_case_id": case.id}}
    transcript = [*conversation, *said]
    fields: JsonObject = {
        "question": case.asked,
        "input": asked,
        "input_messages": asked,
        "output": result.raw_text,
        "candidate_answer": result.raw_text,
        "answer": result.raw_text,
        "output_messages": answered,
        "messages": [*transcript],
        "expected_output": expected,
        "expected_messages": expected,
        "criteria": _own_text(case, "criteria") or expected_text(case) or "",
        "expected_outcome": _own_text(case, "expected_outcome") or expected_text(case) or "",
        "input_files": _own_paths(case, "input_files"),
        "guideline_files": _own_paths(case, "guideline_files"),
        "metadata": case.metadata,
        "trace": trace_of(transcript, result.raw_text, about),
        "trace_summary": summary_of(transcript, known),
        **measured,
        **dict.fromkeys(_UNKNOWN),
    }
    left_out = {
        "reference_answer": _own_text(case, "reference_answer") or expected_text(case),
        "output_path": _long_answer(result.raw_text, keep),
    }
    return {**fields, **{name: value for name, value in left_out.items() if value is not None}}


def _long_answer(text: str, keep: Keep) -> str | None:
    """The path of a file with an answer's JSON, where that is longer than `LONG_ANSWER`."""
    if len(json.dumps(text, ensure_ascii=False)) <= LONG_ANSWER:
        return None
    return keep("output.json", json.dumps(text).encode("ascii"))


def _measured(result: Result, beside: Beside) -> JsonObject:
    usage, price = result.token_usage, beside.price
    return {
        "token_usage": None if usage is None else usage.model_dump(by_alias=True, exclude_none=True),
        "duration_ms": result.duration_ms,
        "cost_usd": None if usage is None or price is None else float(price.of(usage)),
        **_times(result, beside.answered_at),
    }


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


def _turns(case: Case) -> list[ChatMessage]:
    turns = case.messages or [ChatMessage(role="user", content=case.asked)]
    if case.system_prompt:
        return [ChatMessage(role="system", content=case.system_prompt), *turns]
    return turns


def _messages(messages: Sequence[ChatMessage | OutputMessage], keep: Keep) -> list[JsonObject]:
    return [_with_files(write_message(message), keep) for message in messages]


def _with_files(message: JsonObject, keep: Keep) -> JsonObject:
    return {**message, "content": with_files(message["content"], keep)} if "content" in message else message


def _expected_messages(case: Case, keep: Keep) -> list[JsonValue]:
    for field in ("expected_output", "expected_messages"):
        own = case.metadata.get(field)
        if isinstance(own, list):
            messages = [item for item in own if isinstance(item, dict) and "role" in item]
            if len(messages) == len(own):
                return [_with_files(message, keep) for message in messages]
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
