"""A row of the results, as the protocol writes it."""

from __future__ import annotations

import json

from quintain.contracts.agents import MAX_STEPS_BYTES, AgentStep, StepsCut
from quintain.contracts.invoke import OutputMessage, Reasoning, Result, TokenUsage, ToolCall
from quintain_runner.results.answer import Answer, TurnRow, steps_of_turns, turns_of_row
from quintain_runner.results.row import Check, GraderRow, Row, RowStatus
from support.results_folder import errored_row, graded_row

VERDICT = GraderRow(score=0.5, passed=True, reason="r", checks=[Check(text="c", passed=False, evidence="e")], calls=2)


def test_a_row_has_the_protocols_fields_and_no_other_and_reads_back_as_it_was_written() -> None:
    row = graded_row("1", 0.5, output="Paris").with_fields(graders={"judge": VERDICT}, calls=3)
    verdict = {"score": 0.5, "pass": True, "reason": "r", "calls": 2}
    assert json.loads(row.to_line()) == {
        "schemaVersion": 2, "caseId": "1", "target": "bot", "repeat": 1, "status": "graded",
        "output": "Paris", "score": 0.5,
        "graders": {"judge": {**verdict, "checks": [{"text": "c", "pass": False, "evidence": "e"}]}},
        "calls": 3, "tokenUsage": {"input": 10, "output": 2}, "durationMs": 1500.0,
        "fingerprints": {"input": "asked", "grading": "expected", "target": None},
    }  # fmt: skip
    assert Row.model_validate_json(row.to_line()) == row
    written = json.loads(errored_row("1", status=RowStatus.IN_DOUBT).with_fields(tries=2).to_line())
    assert (written["output"], written["score"], written["status"], written["tries"]) == (None, None, "inDoubt", 2)
    assert written["error"] == {"code": "provider_error", "error": "it broke"}


def test_a_case_passes_when_every_grader_passes_it() -> None:
    good, bad = GraderRow(score=0.1, passed=True), GraderRow(score=0.9, passed=False)
    row = graded_row("1", 0.1).with_fields(score=None, graders={"a": good})
    assert not row.passed, "no grader with a weight has given a score"
    row = row.with_fields(score=0.1)
    assert row.passed
    assert not row.model_copy(update={"graders": {"a": good, "b": bad}}).passed
    assert not row.model_copy(update={"status": RowStatus.ERROR}).passed


TOOL_STEP = AgentStep(operation="execute_tool", tool="search", arguments={"q": None}, result="12:40", duration_ms=5.0)


def answered(**fields: object) -> Row:
    """The row of an answer with these fields, as it is read from its file."""
    output = fields.pop("output", [OutputMessage(content="12:40")])
    result = Result.model_validate({"output": output, "target": "bot", "call_count": 1, "max_calls": 1, **fields})
    row = graded_row("1", 1.0, output=result.raw_text).with_fields(duration_ms=7.0, answer=Answer.of(result, "r"))
    return Row.from_wire(row.to_line())


def test_a_row_keeps_the_steps_of_an_answer_and_what_was_cut_under_the_names_of_opentelemetry() -> None:
    row = answered(steps=[TOOL_STEP], steps_cut=StepsCut(characters=9))
    written = json.loads(row.to_line())["answer"]
    called = {
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": {"q": None},
        "gen_ai.tool.call.result": "12:40",
    }
    assert written["steps"] == [{"gen_ai.operation.name": "execute_tool", "durationMs": 5.0, **called}]
    assert written["stepsCut"] == {"kept": 0, "steps": 0, "characters": 9, "values": 0}
    assert row.steps == [TOOL_STEP]
    assert (row.result.steps, row.result.steps_cut) == ([TOOL_STEP], StepsCut(characters=9))
    bare = row.without_content()
    assert (b"12:40" in bare.to_line(), b"stepsCut" in bare.to_line(), bare.steps) == (False, False, [])


def test_what_a_model_thought_and_called_is_a_step_of_its_row_and_is_not_stored_twice() -> None:
    message = OutputMessage(
        content="Let me look.",
        reasoning=[Reasoning(text="A question of tides")],
        tool_calls=[
            ToolCall(id="a", name="search", arguments='{"q": "tides"}'),
            ToolCall(id="b", name="search", arguments="{no"),
        ],
    )
    usage = TokenUsage(input=9, output=4)
    row = answered(output=[message], model="m-1", finish_reason="tool_calls", token_usage=usage)
    (step,) = row.steps
    assert (step.operation, step.model, step.input_tokens, step.output_tokens) == ("chat", "m-1", 9, 4)
    assert step.duration_ms == 7.0
    assert step.messages == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "A question of tides"},
                {"type": "text", "content": "Let me look."},
                {"type": "tool_call", "id": "a", "name": "search", "arguments": {"q": "tides"}},
                {"type": "tool_call", "id": "b", "name": "search", "arguments": "{no"},
            ],
            "finish_reason": "tool_call",
        }
    ]
    assert b"gen_ai" not in row.to_line()
    # An agent that told what its model said is not told it again.
    chat = AgentStep(operation="chat", messages=[{"role": "assistant", "parts": []}])
    assert answered(output=[message], steps=[chat]).steps == [chat]
    assert answered(output=[message], steps=[TOOL_STEP]).steps[0] == TOOL_STEP
    # An answer that is only text has none.
    assert (answered().steps, b"steps" in answered().to_line()) == ([], False)


def test_the_steps_of_a_conversation_are_one_list_and_one_limit_for_all_its_turns() -> None:
    def turn(number: int, size: int, cut: StepsCut | None = None) -> TurnRow:
        steps = [TOOL_STEP.with_fields(arguments=number), TOOL_STEP.with_fields(result="x" * size)]
        return TurnRow(output="12:40", answer=Answer(steps=steps, steps_cut=cut))

    small = [turn(1, 10), turn(2, 10, StepsCut(kept=1, steps=5)), turn(3, 10, StepsCut(characters=7, steps=2))]
    assert turns_of_row(small) == tuple(small)
    steps, cut = steps_of_turns(small)
    assert [step.arguments for step in (steps or [])[::2]] == [1, 2, 3]
    assert cut == StepsCut(kept=3, steps=7, characters=7)
    assert steps_of_turns([TurnRow(output="12:40", answer=Answer())]) == (None, None)
    called = OutputMessage(content="", tool_calls=[ToolCall(id="a", name="search", arguments="{}")])
    asked, said = TurnRow(output="", answer=Answer(messages=[called])), TurnRow(output="12:40", answer=Answer())
    (chat,) = steps_of_turns([asked, said])[0] or ()
    assert (chat.operation, (chat.messages or [])[0]["parts"][0]["name"]) == ("chat", "search")
    steps, cut = steps_of_turns(turns_of_row([turn(number, 200_000) for number in range(4)]))
    assert 0.9 * MAX_STEPS_BYTES < sum(len(step.to_wire()) for step in steps) <= MAX_STEPS_BYTES
    assert (len(steps), cut.steps) == (8, 0)
    assert cut.characters > 500_000
