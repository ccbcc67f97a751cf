"""Graders of what a target did: its tool calls in any form, its time, its cost and its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from quintain.config.prices import Price
from quintain.contracts.agents import AgentStep, StepsCut
from quintain.contracts.invoke import OutputMessage, Result, TokenUsage, ToolCall
from quintain.graders import Case
from quintain_runner.graders.builtin import build_comparison
from quintain_runner.graders.verdict import GraderError
from quintain_runner.results.row import GraderRow
from quintain_runner.spec.graders import GraderSpec

USAGE = TokenUsage(input=100, output=50)


def result_of(*calls: tuple[str, Any], form: str = "steps", **fields: Any) -> Result:
    """An answer after these calls: told as steps, or requested by a model."""
    output, steps = [OutputMessage(content="done")], None
    if form == "steps":
        steps = [AgentStep(operation="execute_tool", tool=tool, arguments=arguments) for tool, arguments in calls]
    elif form == "chat steps":
        parts = [{"type": "tool_call", "id": "1", "name": tool, "arguments": arguments} for tool, arguments in calls]
        steps = [AgentStep(operation="chat", messages=[{"role": "assistant", "parts": parts}])]
    else:
        text = TypeAdapter(Any).dump_json
        asked = [ToolCall(id=f"{n}", name=tool, arguments=text(args).decode()) for n, (tool, args) in enumerate(calls)]
        output = [OutputMessage(content="", tool_calls=asked)]
    known = {"duration_ms": 120.0, "token_usage": USAGE, **fields}
    return Result(output=output, target="t", call_count=0, max_calls=0, steps=steps, **known)


def verdict(result: Result, price: Price | None = None, case: Case | None = None, **options: Any) -> GraderRow:
    spec = TypeAdapter[Any](GraderSpec).validate_python({"name": "g", **options})
    return build_comparison(spec, Path())(case or Case(id="1", question="q"), result, price)


SEARCH, BOOK, PAY = ("search", {"q": "tides"}), ("book", {"city": "Paris", "seats": 2}), ("pay", {"amount": "12.50"})


@pytest.mark.parametrize("form", ["steps", "chat steps", "messages"])
@pytest.mark.parametrize(
    ("options", "passed", "score"),
    [
        ({"called": ["search", "pay"]}, True, 1),
        ({"called": ["pay", "search"]}, True, 1),
        ({"called": ["pay", "search"], "order": "in"}, False, 0.5),
        ({"called": ["search", "pay"], "order": "in"}, True, 1),
        ({"called": ["search", "pay"], "order": "exact"}, False, 1 / 3),
        ({"called": ["search", "book", "pay"], "order": "exact"}, True, 1),
        ({"called": ["search", "search"]}, False, 0.5),
        ({"called": ["fly"]}, False, 0),
        ({"called": [{"tool": "book", "args": {"city": "Paris"}}]}, True, 1),
        ({"called": [{"tool": "book", "args": {"city": "Rome"}}]}, False, 0),
        ({"called": [{"tool": "book", "args": {"seats": True}}]}, False, 0),
        ({"called": [{"tool": "pay", "matching": {"amount": r"^\d+\.\d\d$"}}]}, True, 1),
        ({"called": [{"tool": "pay", "matching": {"amount": "EUR"}}]}, False, 0),
        ({"called": [{"tool": "pay", "matching": {"currency": "."}}]}, False, 0),
        ({"not_called": ["fly"]}, True, 1),
        ({"not_called": ["pay", "fly"]}, False, 0.5),
        ({"max": 3}, True, 1),
        ({"max": 2}, False, 0),
    ],
)
def test_tool_calls_are_compared_in_any_form(form: str, options: dict[str, Any], score: float, *, passed: bool) -> None:
    said = verdict(result_of(SEARCH, BOOK, PAY, form=form), builtin="tool-calls", **options)
    assert (said.passed, said.score) == (passed, pytest.approx(score))
    assert passed == all(check.passed for check in said.checks)


def test_each_expected_call_is_found_in_a_call_of_its_own() -> None:
    calls = result_of(("book", {"city": "Paris"}), ("book", {"city": "Rome"}))
    wanted = ["book", {"tool": "book", "args": {"city": "Paris"}}]
    assert verdict(calls, builtin="tool-calls", called=wanted).passed
    assert not verdict(calls, builtin="tool-calls", called=["book", "book", "book"]).passed


def test_a_row_may_have_its_own_expected_calls() -> None:
    options: dict[str, Any] = {"builtin": "tool-calls", "called_field": "tools"}
    case = Case(id="1", question="q", metadata={"tools": ["search", {"tool": "pay", "args": {}}]})
    assert verdict(result_of(SEARCH, PAY), case=case, **options).passed
    assert not verdict(result_of(SEARCH), case=case, **options).passed
    for wrong in ("search", [3], [{"tool": "a", "arg": {}}], None):
        with pytest.raises(GraderError, match="tools"):
            verdict(result_of(SEARCH), case=Case(id="1", question="q", metadata={"tools": wrong}), **options)


def test_what_ran_counts_and_not_what_was_asked_for() -> None:
    asked = {"type": "tool_call", "id": "1", "name": "pay", "arguments": {}}
    steps = [
        AgentStep(operation="chat", messages=[{"role": "assistant", "parts": [asked]}]),
        AgentStep(operation="execute_tool", tool="search", arguments={}),
    ]
    answer = result_of().with_fields(steps=steps)
    assert verdict(answer, builtin="tool-calls", called=["search"], not_called=["pay"]).passed


def test_calls_that_were_cut_out_are_no_verdict() -> None:
    cut = result_of(SEARCH).with_fields(steps_cut=StepsCut(kept=1, steps=4))
    with pytest.raises(GraderError, match="4 steps"):
        verdict(cut, builtin="tool-calls", not_called=["pay"])
    shortened = result_of(SEARCH).with_fields(steps_cut=StepsCut(kept=1, characters=9))
    assert verdict(shortened, builtin="tool-calls", called=["search"]).passed
    with pytest.raises(GraderError, match="arguments"):
        verdict(shortened, builtin="tool-calls", called=[{"tool": "search", "args": {"q": "tides"}}])


@pytest.mark.parametrize(
    ("options", "passed"),
    [
        ({"builtin": "latency", "max_ms": 120}, True),
        ({"builtin": "latency", "max_ms": 119.9}, False),
        ({"builtin": "cost", "max_usd": 0.0002}, True),
        ({"builtin": "cost", "max_usd": 0.00019}, False),
        ({"builtin": "tokens", "max_input": 100, "max_output": 50, "max_total": 150}, True),
        ({"builtin": "tokens", "max_total": 149}, False),
        ({"builtin": "tokens", "max_output": 49}, False),
    ],
)
def test_what_an_answer_took_is_compared_with_its_limit(options: dict[str, Any], *, passed: bool) -> None:
    price = Price(input_per_million=1, output_per_million=2)
    said = verdict(result_of(), price, **options)
    assert (said.passed, said.reason is None) == (passed, passed)


def test_what_is_not_known_is_no_verdict() -> None:
    cost, price = {"builtin": "cost", "max_usd": 1}, Price(input_per_million=1, output_per_million=2)
    for options, known in ((cost, None), (cost, price), ({"builtin": "tokens", "max_total": 1}, None)):
        with pytest.raises(GraderError):
            verdict(result_of(token_usage=None), known, **options)
