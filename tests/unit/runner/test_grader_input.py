"""What graders read: the fields of every era of AgentV, with the types its SDKs check."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest

from quintain.config.prices import Price
from quintain.contracts.agents import AgentStep
from quintain.contracts.invoke import ChatMessage, OutputMessage, Result, TokenUsage
from quintain.graders import Case
from quintain_runner.graders.input import LONG_ANSWER_CHARACTERS, JsonObject, build_grader_input
from quintain_runner.plan.cases import expected_text
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
    assert (fields["duration_ms"], fields["cost_usd"]) == (12.5, None)


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


def test_a_conversation_is_passed_whole() -> None:
    turns = [ChatMessage(role="user", content="one"), ChatMessage(role="user", content="two")]
    fields = read(Case(id="1", messages=turns), RESULT)
    assert fields["question"] == "two"
    assert fields["input"] == [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]


def test_what_is_expected_and_no_text_is_given_as_its_json_and_an_object_as_it_is() -> None:
    number = Case(id="1", question="q", expected=42)
    assert expected_text(number) == "42"
    assert read(number, RESULT)["expected_output"] == [{"role": "assistant", "content": "42"}]
    objects = Case(id="1", question="q", expected={"city": "Genève"})
    assert expected_text(objects) == '{"city": "Genève"}'
    assert read(objects, RESULT)["expected_output"] == [{"role": "assistant", "content": {"city": "Genève"}}]


def test_an_answer_without_token_usage_says_so() -> None:
    assert read(ASKED, RESULT.model_copy(update={"token_usage": None}))["token_usage"] is None


AFTERNOON = datetime(2026, 3, 1, 14, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=2)))
PRICE = Price(input_per_million=Decimal(1000), output_per_million=Decimal(5000))


def test_the_times_are_the_targets_own_as_javascript_writes_them() -> None:
    result = RESULT.model_copy(update={"duration_ms": 1250.0})
    fields = read(ASKED, result, answered_at=AFTERNOON)
    assert (fields["start_time"], fields["end_time"]) == ("2026-03-01T11:59:59.000Z", "2026-03-01T12:00:00.250Z")


@pytest.mark.parametrize("name", ["start_time", "end_time", "cost_usd", "file_changes", "workspace_path"])
def test_what_nobody_knows_is_null(name: str) -> None:
    fields = read(ASKED, RESULT)
    assert fields[name] is None


def test_the_cost_is_the_targets_where_its_price_and_its_tokens_are_known() -> None:
    assert read(ASKED, RESULT, price=PRICE)["cost_usd"] == pytest.approx(0.008)
    uncounted = RESULT.model_copy(update={"token_usage": None})
    assert read(ASKED, uncounted, price=PRICE)["cost_usd"] is None


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


def test_the_trace_tells_what_is_known_and_leaves_out_the_rest() -> None:
    trace, summary = (read(ASKED, RESULT, price=PRICE)[name] for name in ("trace", "trace_summary"))
    assert isinstance(trace, dict)
    assert isinstance(summary, dict)
    assert trace["metadata"] == {"target": "bot", "eval_case_id": "1"}
    for told in (trace, summary):
        assert told["token_usage"] == {"input": 3, "output": 1}
        assert (told["cost_usd"], told["duration_ms"]) == (pytest.approx(0.008), 12.5)
    unknown = read(ASKED, RESULT.model_copy(update={"token_usage": None}))["trace"]
    assert isinstance(unknown, dict)
    assert not unknown.keys() & {"token_usage", "cost_usd", "start_time", "end_time"}


def test_the_tools_that_ran_for_an_answer_are_in_its_trace_and_its_steps_are_beside_it() -> None:
    steps = [
        AgentStep(operation="execute_tool", tool="look", tool_call_id="c1", arguments={"a": 1}, result="Paris"),
        AgentStep(operation="execute_tool", tool="drop", error_type="Refused", duration_ms=3.0),
    ]
    fields = read(ASKED, RESULT.with_fields(steps=steps))
    trace = fields["trace"]
    assert isinstance(trace, dict)
    sums = (trace["event_count"], trace["tool_calls"], trace["error_count"], trace["llm_call_count"])
    assert sums == (2, {"look": 1, "drop": 1}, 1, 1)
    events = trace["events"]
    assert isinstance(events, list)
    assert [event["tool"] for event in events if event["type"] == "tool_call"] == [  # type: ignore[index, call-overload]
        {"name": "look", "call_id": "c1", "input": {"a": 1}, "output": "Paris", "status": "ok"},
        {"name": "drop", "call_id": "step-1", "input": None, "output": None, "duration_ms": 3.0, "status": "error"},
    ]
    assert fields["steps"] == [step.model_dump(by_alias=True, exclude_none=True) for step in steps]
    assert fields["messages"] == read(ASKED, RESULT)["messages"]
