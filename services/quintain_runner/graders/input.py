"""Builds the JSON object that a command grader reads on stdin. No I/O.

It has the fields of every version of AgentV's grader contract, in snake_case, so that an unchanged AgentV grader finds
its own: ``expected_output`` and ``input`` are lists of messages, ``messages`` is the whole conversation,
``output_messages`` the answer's part of it, ``output`` is text, and ``trace`` lists messages and tool calls as events.
A field that may not be null is omitted where its value is unknown.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from pydantic import JsonValue

from quintain.config.prices import Price
from quintain.contracts.invoke import ChatMessage, OutputMessage, Result
from quintain.graders import Case
from quintain.programs.sandbox import Confinement
from quintain_runner.graders.verdict import GraderError
from quintain_runner.plan.cases import expected_text, write_message
from quintain_runner.results.agent_steps import steps_of

#: Writes a file with this name and content, and returns its path.
SaveFile = Callable[[str, bytes], str]

#: The subtypes of media types that are used as file suffixes: the media type is untrusted and must not form a path.
_SUFFIX = re.compile(r"[a-z0-9]{1,10}")


def replace_images_with_files(content: JsonValue, save_file: SaveFile) -> JsonValue:
    """A message's content in which each image is replaced by the path of a file; other parts are unchanged."""
    return [_part(part, save_file) for part in content] if isinstance(content, list) else content


def _part(part: JsonValue, save_file: SaveFile) -> JsonValue:
    """A content part, with an image in AgentV's or OpenAI's form replaced by the path of a file."""
    if not isinstance(part, dict):
        return part
    is_agentv_image = part.get("type") == "image"
    image = part.get("image_url")
    url = part.get("source") if is_agentv_image else image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str):
        return part
    decoded = _decode_data_url(url)
    if decoded is not None:
        kind, data = decoded
        name = f"image-{hashlib.sha256(data).hexdigest()[:16]}.{_suffix(kind)}"
        return {"type": "image", "media_type": kind, "path": save_file(name, data)}
    # A source in AgentV's form that is not a data URL is already a path. Parts in OpenAI's form have no known media
    # type.
    return {"type": "image", "media_type": part.get("media_type"), "path": url} if is_agentv_image else part


def _decode_data_url(url: str) -> tuple[str, bytes] | None:
    """The media type and the bytes of a base64 data URL (RFC 2397); None for any other URL."""
    scheme, _, rest = url.partition(":")
    head, _, data = rest.partition(",")
    kind, *options = head.split(";")
    if scheme.lower() != "data" or options[-1:] != ["base64"]:
        return None
    try:
        return kind, base64.b64decode(data)
    except (binascii.Error, ValueError):
        # Invalid base64: the part stays unchanged, so that a grader can report it.
        return None


def _suffix(kind: str) -> str:
    """The file suffix for a media type, or ``bin`` if it is unusual."""
    suffix = kind.partition("/")[2].partition("+")[0]
    if not _SUFFIX.fullmatch(suffix):
        return "bin"
    return "jpg" if suffix == "jpeg" else suffix


@contextlib.contextmanager
def temporary_grader_files(parent: Path | None, confinement: Confinement) -> Iterator[SaveFile]:
    """Provide a function that writes files for a grader; they are removed at the end of the ``with`` block.

    The folder is created with the first file, in ``parent`` if it is given. The function raises `GraderError` if a
    file cannot be written.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def folder() -> Path:
            made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quintain-grader-", dir=parent)))
            confinement.share(made)
            return made

        def save_file(name: str, data: bytes) -> str:
            try:
                path = folder() / name
                path.write_bytes(data)
                confinement.share(path)
            except OSError as error:
                raise GraderError(
                    f"A file for it cannot be written in {tempfile.gettempdir()} ({error.strerror}); free disk space, "
                    "or set TMPDIR to another folder"
                ) from None
            return str(path)

        yield save_file


JsonObject = dict[str, JsonValue]

#: Fields that the trace summary of AgentV's first grader contract has in addition to the totals.
_SUMMARY_FIELDS = ("token_usage", "cost_usd", "duration_ms")


def build_trace(transcript: Sequence[JsonObject], answer: str, known: JsonObject) -> JsonObject:
    """The ``trace`` field of a conversation that ended with ``answer``.

    ``transcript`` are all messages in grader form (see `write_message`), and ``known`` are further fields of the trace.
    """
    events = [{**event, "ordinal": ordinal} for ordinal, event in zip(count(), _events(transcript, answer))]
    return {**_trace_totals(transcript), "messages": [*transcript], "events": [*events], **known}


def build_trace_summary(transcript: Sequence[JsonObject], known: JsonObject) -> JsonObject:
    """The ``trace_summary`` field: the totals of a conversation, named as in all versions of AgentV's contract."""
    tool_counts = _count_tool_calls(transcript)
    summary_fields = {name: known[name] for name in _SUMMARY_FIELDS if name in known}
    return {
        **_trace_totals(transcript),
        "tool_names": [*sorted(tool_counts)],
        "tool_calls_by_name": dict(tool_counts),
        **summary_fields,
    }


def _trace_totals(transcript: Sequence[JsonObject]) -> JsonObject:
    """The numbers of tool calls, errors and model messages of a conversation."""
    tool_counts = _count_tool_calls(transcript)
    return {
        "event_count": tool_counts.total(),
        "tool_calls": dict(tool_counts),
        "error_count": sum(call.get("status") == "error" for one in transcript for call in _tool_calls(one)),
        "llm_call_count": sum(one["role"] == "assistant" and not _is_of_tools(one) for one in transcript),
    }


def _is_of_tools(message: JsonObject) -> bool:
    """Whether a message is none of a model's, but stands for tools that ran."""
    return any("output" in call for call in _tool_calls(message))


def _count_tool_calls(transcript: Sequence[JsonObject]) -> Counter[str]:
    """The number of calls of each tool."""
    return Counter(str(call["tool"]) for message in transcript for call in _tool_calls(message))


def _events(transcript: Sequence[JsonObject], answer: str) -> Iterator[JsonObject]:
    """The events of a conversation: each message, each of its tool calls, and the final response."""
    last: tuple[int, JsonObject] | None = None
    for index, message in enumerate(transcript):
        yield _message_event(f"message-{index}", index, message["role"], message["content"])
        for number, call in enumerate(_tool_calls(message)):
            yield _tool_call_event(index, number, call)
        if message["role"] == "assistant":
            last = index, message
    if last is not None:
        index, message = last
        final = _message_event("final-response", index, message["role"], answer)
        yield {**final, "type": "final_response", "parent_event_id": f"message-{index}"}


def _message_event(event_id: str, index: int, role: JsonValue, content: JsonValue) -> JsonObject:
    """The trace event of a message; ``index`` is its position in the transcript."""
    return {
        "event_id": event_id,
        "type": "message",
        "message": {"role": role, "content": content},
        "metadata": {"message_index": index},
    }


def _tool_call_event(index: int, number: int, call: JsonObject) -> JsonObject:
    """The trace event of a tool call; ``index`` is the message's position, ``number`` the call's position in it.

    What became of a call that only a model's message names is unknown.
    """
    tool: JsonObject = {key: call[key] for key in ("output", "duration_ms") if key in call}
    tool |= {"name": call["tool"], "call_id": call["id"], "input": call["input"]}
    return {
        "event_id": f"message-{index}-tool-{number}",
        "parent_event_id": f"message-{index}",
        "type": "tool_call",
        "tool": {**tool, "status": call.get("status", "unknown")},
        "metadata": {"message_index": index, "tool_index": number},
    }


def _tool_calls(message: JsonObject) -> list[JsonObject]:
    """The tool calls of a message in grader form."""
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


#: Answers whose JSON is longer than this are also written to a file; the same limit as AgentV's.
LONG_ANSWER_CHARACTERS = 50_000

#: Fields that are always null: a target runs elsewhere, so its folder and its file changes are unknown.
_UNKNOWN_FIELDS = ("file_changes", "workspace_path", "config")


def build_grader_input(
    case: Case, result: Result, answered_at: datetime | None, price: Price | None, save_file: SaveFile
) -> JsonObject:
    """Build the object that a command grader reads: the case, the target's answer and the expected answer.

    ``answered_at`` is when the answer arrived, and ``price`` its target's token price; None if unknown. ``save_file``
    writes content that the grader reads as files: images in data URLs, and the JSON of a long answer.
    """
    input_messages, answer_messages = _messages(_input_messages(case), save_file), _messages(result.output, save_file)
    input_json: list[JsonValue] = [*input_messages]
    answer_json: list[JsonValue] = [*answer_messages]
    expected = _expected_messages(case, save_file)
    measurements = _measurements(result, answered_at, price)
    known: JsonObject = {name: value for name, value in measurements.items() if value is not None}
    trace_fields: JsonObject = {**known, "metadata": {"target": result.target, "eval_case_id": case.id}}
    transcript = [*input_messages, *_tool_messages(result), *answer_messages]
    fields: JsonObject = {
        "question": case.question_text,
        "input": input_json,
        "input_messages": input_json,
        "output": result.raw_text,
        "candidate_answer": result.raw_text,
        "answer": result.raw_text,
        "output_messages": answer_json,
        "messages": [*input_messages, *answer_messages],
        "expected_output": expected,
        "expected_messages": expected,
        "criteria": _metadata_text(case, "criteria") or expected_text(case) or "",
        "expected_outcome": _metadata_text(case, "expected_outcome") or expected_text(case) or "",
        "input_files": _metadata_paths(case, "input_files"),
        "guideline_files": _metadata_paths(case, "guideline_files"),
        "metadata": case.metadata,
        "trace": build_trace(transcript, result.raw_text, trace_fields),
        "trace_summary": build_trace_summary(transcript, known),
        "steps": [step.model_dump(by_alias=True, exclude_none=True) for step in steps_of(result)],
        **measurements,
        **dict.fromkeys(_UNKNOWN_FIELDS),
    }
    optional_fields = {
        "reference_answer": _metadata_text(case, "reference_answer") or expected_text(case),
        "output_path": _save_long_answer(result.raw_text, save_file),
    }
    return {**fields, **{name: value for name, value in optional_fields.items() if value is not None}}


def _tool_messages(result: Result) -> Iterator[JsonObject]:
    """The tools that ran for an answer as messages of the assistant, for its trace."""
    for number, step in enumerate(result.steps or ()):
        if step.operation == "execute_tool":
            call: JsonObject = {"tool": step.tool or "", "input": step.arguments, "output": step.result}
            call |= {"id": step.tool_call_id or f"step-{number}", "status": "error" if step.error_type else "ok"}
            timed = {} if step.duration_ms is None else {"duration_ms": step.duration_ms}
            yield {"role": "assistant", "content": "", "tool_calls": [{**call, **timed}]}


def _save_long_answer(text: str, save_file: SaveFile) -> str | None:
    """Write an answer's JSON to a file if it is longer than `LONG_ANSWER_CHARACTERS`; returns the path, or None."""
    if len(json.dumps(text, ensure_ascii=False)) <= LONG_ANSWER_CHARACTERS:
        return None
    return save_file("output.json", json.dumps(text).encode("ascii"))


def _measurements(result: Result, answered_at: datetime | None, price: Price | None) -> JsonObject:
    """The tokens, duration, cost and times of an answer; unknown values are None."""
    usage = result.token_usage
    return {
        "token_usage": None if usage is None else usage.model_dump(by_alias=True, exclude_none=True),
        "duration_ms": result.duration_ms,
        "cost_usd": price.of_call(usage) if result.cost_usd is None and price is not None else result.cost_usd,
        **_time_fields(result, answered_at),
    }


def _time_fields(result: Result, answered_at: datetime | None) -> JsonObject:
    """The start and end of the target's work as ISO 8601 timestamps with milliseconds, as JavaScript writes them."""
    if answered_at is None:
        return {"start_time": None, "end_time": None}
    started_at = answered_at - timedelta(milliseconds=result.duration_ms)
    return {"start_time": _iso_timestamp(started_at), "end_time": _iso_timestamp(answered_at)}


def _iso_timestamp(moment: datetime) -> str:
    """A UTC timestamp such as ``2026-01-31T12:00:00.000Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _input_messages(case: Case) -> list[ChatMessage]:
    """The messages that the target was sent."""
    turns = case.messages or [ChatMessage(role="user", content=case.question_text)]
    if case.system_prompt:
        return [ChatMessage(role="system", content=case.system_prompt), *turns]
    return turns


def _messages(messages: Sequence[ChatMessage | OutputMessage], save_file: SaveFile) -> list[JsonObject]:
    """Messages in grader form, with images replaced by files."""
    return [_message_with_files(write_message(message), save_file) for message in messages]


def _message_with_files(message: JsonObject, save_file: SaveFile) -> JsonObject:
    """A message in grader form, with images replaced by files."""
    return (
        {**message, "content": replace_images_with_files(message["content"], save_file)}
        if "content" in message
        else message
    )


def _expected_messages(case: Case, save_file: SaveFile) -> list[JsonValue]:
    """The expected answer as messages: the dataset's value ``expected_output`` or ``expected_messages``, else
    ``expected``.
    """
    for field in ("expected_output", "expected_messages"):
        value = case.metadata.get(field)
        if isinstance(value, list):
            messages = [item for item in value if isinstance(item, dict) and "role" in item]
            if len(messages) == len(value):
                return [_message_with_files(message, save_file) for message in messages]
        if isinstance(value, str):
            return [{"role": "assistant", "content": value}]
    if case.expected is None:
        return []
    # AgentV's message content is text or an object, so other values are passed as JSON text.
    content = case.expected if isinstance(case.expected, Mapping) else expected_text(case)
    return [{"role": "assistant", "content": content}]


def _metadata_text(case: Case, field: str) -> str | None:
    """A metadata field of the case if it is text, else None."""
    value = case.metadata.get(field)
    return value if isinstance(value, str) else None


def _metadata_paths(case: Case, field: str) -> list[JsonValue]:
    """A metadata field of the case if it is a list of text, else an empty list."""
    value = case.metadata.get(field)
    return value if isinstance(value, list) and all(isinstance(path, str) for path in value) else []
