"""What graders read: the fields of every era of AgentV, with the types its SDKs check, images as files, and traces."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from pydantic import JsonValue

from quintain.config.prices import Price
from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import ChatMessage, OutputMessage, Result, TokenUsage, ToolCall
from quintain.graders import Case
from quintain.runtime.text_files import InvalidLine
from quintain_runner.graders.input import (
    LONG_ANSWER_CHARACTERS,
    JsonObject,
    build_grader_input,
    build_trace,
    replace_images_with_files,
)
from quintain_runner.plan.cases import expected_text, parse_case
from support.grading_context import SavedFiles

RESULT = Result(
    output=[OutputMessage(content="Paris")],
    token_usage=TokenUsage(input=3, output=1),
    target="bot",
    duration_ms=12.5,
    call_count=1,
    max_calls=9,
)

ASKED = Case(id="1", question="Capital?", system_prompt="Be short.", expected="Paris", metadata={"level": 2})

FIRST_ERA = {
    "question", "expected_outcome", "expected_messages", "reference_answer", "candidate_answer", "output_messages",
    "guideline_files", "input_files", "input_messages", "trace_summary", "config",
}  # fmt: skip

LAST_ERA = {
    "criteria", "expected_output", "output", "messages", "input_files", "input", "metadata", "trace",
    "trace_summary", "token_usage", "cost_usd", "duration_ms", "start_time", "end_time", "file_changes",
    "workspace_path", "config",
}  # fmt: skip


def read(
    case: Case,
    result: Result,
    *,
    answered_at: datetime | None = None,
    price: Price | None = None,
    files: SavedFiles | None = None,
) -> JsonObject:
    """What a grader reads, where nothing else is known."""
    return build_grader_input(case, result, answered_at, price, (SavedFiles() if files is None else files).save_file)


PRICE = Price(input_per_million=Decimal(1000), output_per_million=Decimal(5000))


def test_it_has_the_fields_of_every_era_and_is_json() -> None:
    fields = read(ASKED, RESULT)
    assert fields.keys() >= FIRST_ERA | LAST_ERA
    assert json.loads(json.dumps(fields)) == fields


def test_the_question_the_answer_and_what_was_expected_are_where_each_era_looks() -> None:
    fields = read(ASKED, RESULT)
    asked = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Capital?"}]
    said = [{"role": "assistant", "content": "Paris"}]
    assert fields["question"] == "Capital?"
    assert fields["input"] == fields["input_messages"] == asked
    assert fields["output"] == fields["candidate_answer"] == "Paris"
    assert fields["output_messages"] == said
    assert fields["messages"] == [*asked, *said]
    assert fields["expected_output"] == fields["expected_messages"] == said
    assert fields["criteria"] == fields["expected_outcome"] == fields["reference_answer"] == "Paris"
    assert fields["metadata"] == {"level": 2}
    assert fields["token_usage"] == {"input": 3, "output": 1}
    assert fields["duration_ms"] == 12.5
    unknown = ("start_time", "end_time", "cost_usd", "file_changes", "workspace_path")
    assert [fields[name] for name in unknown] == [None] * 5
    priced = read(ASKED, RESULT, price=PRICE)
    assert priced["cost_usd"] == pytest.approx(0.008)
    uncounted = read(ASKED, RESULT.model_copy(update={"token_usage": None}), price=PRICE)
    assert (uncounted["token_usage"], uncounted["cost_usd"]) == (None, None)


def test_a_rows_own_fields_win_over_what_is_expected() -> None:
    own = {
        "criteria": "names the capital",
        "expected_outcome": "a city",
        "reference_answer": "Paris, France",
        "expected_output": [{"role": "assistant", "content": "It is Paris."}],
        "input_files": ["a.txt"],
        "guideline_files": "not a list of paths",
    }
    fields = read(ASKED.model_copy(update={"metadata": own}), RESULT)
    for name in ("criteria", "expected_outcome", "reference_answer", "expected_output", "input_files"):
        assert fields[name] == own[name]
    assert fields["guideline_files"] == []
    assert fields["metadata"] == own


def test_a_row_that_expects_nothing_leaves_out_what_may_not_be_null() -> None:
    fields = read(Case(id="1", question="q"), RESULT)
    assert "reference_answer" not in fields
    assert fields["criteria"] == fields["expected_outcome"] == ""
    assert fields["expected_output"] == []


def test_what_is_expected_and_no_text_is_given_as_its_json_and_an_object_as_it_is() -> None:
    number = Case(id="1", question="q", expected=42)
    assert expected_text(number) == "42"
    assert read(number, RESULT)["expected_output"] == [{"role": "assistant", "content": "42"}]
    objects = Case(id="1", question="q", expected={"city": "Genève"})
    assert expected_text(objects) == '{"city": "Genève"}'
    assert read(objects, RESULT)["expected_output"] == [{"role": "assistant", "content": {"city": "Genève"}}]


AFTERNOON = datetime(2026, 3, 1, 14, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=2)))


def test_the_times_are_the_targets_own_as_javascript_writes_them() -> None:
    result = RESULT.model_copy(update={"duration_ms": 1250.0})
    fields = read(ASKED, result, answered_at=AFTERNOON)
    assert (fields["start_time"], fields["end_time"]) == ("2026-03-01T11:59:59.000Z", "2026-03-01T12:00:00.250Z")


def test_a_long_answer_is_in_a_file_too() -> None:
    # With its two quotes it is as long as may be, and longer.
    for characters, kept in ((LONG_ANSWER_CHARACTERS - 2, False), (LONG_ANSWER_CHARACTERS - 1, True)):
        files = SavedFiles()
        long = RESULT.model_copy(update={"output": [OutputMessage(content="ä" * characters)]})
        fields = read(ASKED, long, files=files)
        assert ("output_path" in fields, len(files)) == (kept, int(kept))
        assert fields["output"] == long.raw_text
        if kept:
            assert json.loads(files[str(fields["output_path"])]) == long.raw_text


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def test_an_image_is_a_file_wherever_messages_are() -> None:
    seen = ChatMessage(role="user", content=[{"type": "text", "text": "What is it?"}, IMAGE])
    own: JsonObject = {"expected_output": [{"role": "assistant", "content": [IMAGE]}, {"role": "assistant"}]}
    files = SavedFiles()
    answer = RESULT.model_copy(update={"output": [OutputMessage(content=[IMAGE])]})
    fields = read(Case(id="1", messages=[seen], metadata=own), answer, files=files)
    ((path, held),) = files.items()
    assert held == b"\x89PNG\r\n\x1a\n"
    image = {"type": "image", "media_type": "image/png", "path": path}
    asked = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}
    said = {"role": "assistant", "content": [image]}
    assert fields["input"] == fields["input_messages"] == [asked]
    assert fields["output_messages"] == [said]
    assert fields["messages"] == [asked, said]
    assert fields["expected_output"] == [said, {"role": "assistant"}]
    assert "data:" not in json.dumps(fields["trace"])
    assert fields["metadata"] == own


def test_the_tools_that_ran_for_an_answer_are_in_its_trace_and_its_steps_are_beside_it() -> None:
    steps = [
        AgentStep(operation="execute_tool", tool="look", tool_call_id="c1", arguments={"a": 1}, result="Paris"),
        AgentStep(operation="execute_tool", tool="drop", error_type="Refused", duration_ms=3.0),
    ]
    fields = read(ASKED, RESULT.with_fields(steps=steps))
    trace = fields["trace"]
    sums = (trace["event_count"], trace["tool_calls"], trace["error_count"], trace["llm_call_count"])
    assert sums == (2, {"look": 1, "drop": 1}, 1, 1)
    events = trace["events"]
    assert [event["tool"] for event in events if event["type"] == "tool_call"] == [
        {"name": "look", "call_id": "c1", "input": {"a": 1}, "output": "Paris", "status": "ok"},
        {"name": "drop", "call_id": "step-1", "input": None, "output": None, "duration_ms": 3.0, "status": "error"},
    ]
    assert fields["steps"] == [step.model_dump(by_alias=True, exclude_none=True) for step in steps]
    assert fields["messages"] == read(ASKED, RESULT)["messages"]


def openai(url: JsonValue) -> JsonValue:
    return {"type": "image_url", "image_url": {"url": url}}


def agentv(source: JsonValue) -> JsonValue:
    return {"type": "image", "media_type": "image/png", "source": source}


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        *(("image/png", "png"), ("image/jpeg", "jpg"), ("image/svg+xml", "svg"), ("image/../../etc/passwd", "bin")),
        *(("image/p\0ng", "bin"), ("image/" + "x" * 300, "bin"), ("", "bin")),
    ],
)
def test_an_image_in_either_words_is_a_file_in_agentvs_and_its_type_is_no_path(kind: str, suffix: str) -> None:
    files, text = SavedFiles(), {"type": "text", "text": "look"}
    written = [openai(f"data:{kind};base64,aGk="), agentv(f"DATA:{kind};charset=x;base64,aGk=")]
    shown = replace_images_with_files([text, *written], files.save_file)
    ((path, held),) = files.items()
    image = {"type": "image", "media_type": kind, "path": path}
    assert (shown, held) == ([text, image, image], b"hi")
    _, _, name = path.partition("/kept/image-")
    assert (len(name), name[16:]) == (17 + len(suffix), f".{suffix}")


NO_DATA = ("https://host/picture.png", "data:image/png;base64,a", "data:image/png;base64,\u00e4", "data:image/png,hi")


@pytest.mark.parametrize(
    "content",
    [
        *("data:image/png;base64,aGk=", None, ["data:image/png;base64,aGk=", 7, None]),
        *([openai(url)] for url in (*NO_DATA, "data:", 7)),
        *([agentv(None)], [agentv("pictures/a.png")]),
        [{"type": "image_url", "image_url": "data:image/png;base64,aGk="}],
    ],
)
def test_what_is_no_image_in_place_stays_as_it_is(content: JsonValue) -> None:
    files = SavedFiles()
    shown = replace_images_with_files(content, files.save_file)
    # What AgentV's part names elsewhere is its path.
    path = [{"type": "image", "media_type": "image/png", "path": "pictures/a.png"}]
    assert (shown, files) == (path if content == [agentv("pictures/a.png")] else content, {})


CALL = ToolCall(id="c1", name="weather", arguments='{"city": "Genève"}')
OF_OPENAI = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Genève"}'}}
OF_AGENTV = {"tool": "weather", "input": {"city": "Genève"}, "output": "rain"}


def turns_of(*turns: dict[str, Any]) -> list[ChatMessage]:
    first = {"role": "user", "content": "q"}
    return (parse_case({"id": "1", "messages": [first, *turns]}).messages or [])[1:]


@pytest.mark.parametrize("key", ["tool_calls", "toolCalls"])
@pytest.mark.parametrize("written", [OF_OPENAI, CALL.model_dump()])
def test_a_row_holds_calls_as_openai_writes_them_or_as_we_do(key: str, written: dict[str, Any]) -> None:
    asked = {"role": "assistant", "content": None, key: [written]}
    told = {"role": "tool", "content": "rain", "tool_call_id": "c1"}
    assert turns_of(asked, told) == [
        ChatMessage(role="assistant", content="", tool_calls=[CALL]),
        ChatMessage(role="tool", content="rain", tool_call_id="c1"),
    ]


@pytest.mark.parametrize("key", ["tool_calls", "toolCalls"])
@pytest.mark.parametrize(
    "written", [[OF_AGENTV], [OF_OPENAI, OF_AGENTV], [], None, "x", [5], [{"function": 5}], [{"id": 5}], {}]
)
def test_calls_in_other_words_are_no_mistake_and_not_asked(key: str, written: object) -> None:
    said = {"role": "assistant", "content": "I look", key: written, "toolCallId": 5}
    assert turns_of(said) == [ChatMessage(role="assistant", content="I look")]


def test_a_turn_that_says_nothing_and_calls_nothing_is_still_a_mistake() -> None:
    with pytest.raises(InvalidLine, match=r"messages\[1\].content"):
        turns_of({"role": "assistant", "content": None, "tool_calls": [OF_AGENTV]})


def test_a_grader_reads_agentvs_words_and_no_nulls() -> None:
    turns = [
        ChatMessage(role="user", content="q"),
        ChatMessage(role="assistant", content="", tool_calls=[CALL]),
        ChatMessage(role="tool", content="rain", tool_call_id="c1"),
    ]
    broken = ToolCall(id="c2", name="weather", arguments='{"city": NaN')
    said = OutputMessage(content="I look", tool_calls=[CALL, broken])
    result = Result(output=[said], target="t", call_count=1, max_calls=1)
    fields = read(Case(id="1", messages=turns), result)
    call = {"tool": "weather", "input": {"city": "Genève"}, "id": "c1"}
    assert fields["input"] == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    ]
    calls = [call, {"tool": "weather", "input": '{"city": NaN', "id": "c2"}]
    assert fields["output_messages"] == [{"role": "assistant", "content": "I look", "tool_calls": calls}]


#: What is expected here was measured: AgentV 4.42.4 on the same conversation.
CALLS: JsonObject = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"tool": "look", "input": {"a": number}, "id": f"c{number}"} for number in (1, 2)],
}
CONVERSATION: list[JsonObject] = [
    {"role": "user", "content": "capital?"},
    CALLS,
    {"role": "assistant", "content": [{"type": "text", "text": "Paris"}]},
]


def message(index: int, role: str, content: object) -> dict[str, object]:
    """An event of a message, but for its place."""
    return {
        "event_id": f"message-{index}",
        "type": "message",
        "message": {"role": role, "content": content},
        "metadata": {"message_index": index},
    }


def call(number: int) -> dict[str, object]:
    """An event of the second message's call, but for its place."""
    return {
        "event_id": f"message-1-tool-{number - 1}",
        "parent_event_id": "message-1",
        "type": "tool_call",
        # AgentV says "ok" of a call of which it knows no more.
        "tool": {"name": "look", "call_id": f"c{number}", "input": {"a": number}, "status": "unknown"},
        "metadata": {"message_index": 1, "tool_index": number - 1},
    }


EVENTS = [
    message(0, "user", "capital?"),
    message(1, "assistant", ""),
    call(1),
    call(2),
    message(2, "assistant", [{"type": "text", "text": "Paris"}]),
    message(2, "assistant", "Paris")
    | {"event_id": "final-response", "parent_event_id": "message-2", "type": "final_response"},
]

SUMS = {"event_count": 2, "tool_calls": {"look": 2}, "error_count": 0, "llm_call_count": 2}


def test_a_trace_has_every_message_and_call_in_order() -> None:
    assert build_trace(CONVERSATION, "Paris", {"duration_ms": 322}) == {
        **SUMS,
        "messages": CONVERSATION,
        "events": [{**event, "ordinal": ordinal} for ordinal, event in enumerate(EVENTS)],
        "duration_ms": 322,
    }
