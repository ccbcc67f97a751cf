"""The built-in graders that check what a target did for its answer: tool calls, time, cost and tokens. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from quintain.config.prices import Price
from quintain.contracts.invoke import Result
from quintain.graders import Case
from quintain_runner.graders.verdict import GraderError
from quintain_runner.results.agent_steps import parsed, steps_of
from quintain_runner.results.row import Check, GraderRow
from quintain_runner.spec.builtin_graders import (
    CostGrader,
    ExpectedToolCall,
    LatencyGrader,
    TokensGrader,
    ToolCallsGrader,
    ToolCallSpec,
)
from quintain_runner.spec.right_answers import answer_text
from quintain_runner.untrusted import BacktrackLimitExceeded, compile_pattern, plain_line

_EXPECTED_CALLS = TypeAdapter(list[ToolCallSpec], config=ConfigDict(defer_build=True))

#: The most characters of a tool's name that are shown.
_MAX_NAME_CHARACTERS = 80


class ActualToolCall(NamedTuple):
    """A call of a tool that a target made, with its arguments as JSON."""

    tool: str
    arguments: Any


def tool_calls_of(result: Result) -> list[ActualToolCall]:
    """Return the tool calls of an answer in their order: those that ran, or else those that a model asked for."""
    steps = steps_of(result)
    ran = [ActualToolCall(step.tool or "", step.arguments) for step in steps if step.operation == "execute_tool"]
    return ran or [
        ActualToolCall(str(part.get("name")), part.get("arguments"))
        for step in steps
        for message in step.messages or ()
        for part in message.get("parts") or ()
        if isinstance(part, dict) and part.get("type") == "tool_call"
    ]


def check_tool_calls(spec: ToolCallsGrader, case: Case, result: Result) -> GraderRow:
    """Compare the calls of tools with those that are expected.

    Raises `GraderError` where the row has no usable expectation, or where steps were cut, so that calls may be missing.
    """
    cut = result.steps_cut
    if cut is not None and cut.steps:
        raise GraderError(f"{cut.steps} steps of the answer were too many to keep; calls may be among them")
    expected = spec.called if spec.called_field is None else _expected_of(case, spec.called_field)
    if cut is not None and any(call.args or call.matching for call in expected):
        raise GraderError("The steps of the answer were too long to keep as they are; arguments may be cut")
    actual = tool_calls_of(result)
    checks = [*_called_checks(expected, actual, spec.order), *_other_checks(spec, actual)]
    missed = [check for check in checks if not check.passed]
    score = 1.0 if not checks else 1 - len(missed) / len(checks)
    return GraderRow(score=score, passed=not missed, reason=missed[0].text if missed else None, checks=checks)


def is_tool_call_list(value: object) -> bool:
    """Whether a value of a row is a list of expected tool calls."""
    try:
        _EXPECTED_CALLS.validate_python(value)
    except ValidationError:
        return False
    return True


def _expected_of(case: Case, field: str) -> list[ExpectedToolCall]:
    try:
        return _EXPECTED_CALLS.validate_python(case.metadata.get(field))
    except ValidationError:
        raise GraderError(
            f"The row's {field} is no list of tool calls; write [search, {{tool: book, args: {{city: Paris}}}}]"
        ) from None


def _called_checks(
    expected: Sequence[ExpectedToolCall], actual: Sequence[ActualToolCall], order: str
) -> Iterator[Check]:
    fits = [[_fits(want, call) for call in actual] for want in expected]
    if order == "exact":
        found = {index for index in range(min(len(expected), len(actual))) if fits[index][index]}
    elif order == "in":
        found = _found_in_order(fits)
    else:
        found = _found_in_any_order(fits)
    for index, want in enumerate(expected):
        how = "" if order == "any" else f", as number {index + 1}"
        yield Check(text=f"called {_shown(want.tool)}{_details(want)}{how}", passed=index in found)
    if order == "exact" and (expected or actual):
        others = len(actual) - len(expected)
        yield Check(
            text="called nothing else", passed=others <= 0, reason=f"{others} more calls" if others > 0 else None
        )


def _found_in_order(fits: Sequence[Sequence[bool]]) -> set[int]:
    """Return the expected calls that are found one after the other, each as early as it can be."""
    found, begin = set[int](), 0
    for index, row in enumerate(fits):
        place = next((place for place in range(begin, len(row)) if row[place]), None)
        if place is not None:
            found.add(index)
            begin = place + 1
    return found


def _found_in_any_order(fits: Sequence[Sequence[bool]]) -> set[int]:
    """Return the most expected calls that can be found, each of them in a call of its own (augmenting paths)."""
    taken: dict[int, int] = {}

    def place(index: int, seen: set[int]) -> bool:
        for call, is_fitting in enumerate(fits[index]):
            if is_fitting and call not in seen:
                seen.add(call)
                if call not in taken or place(taken[call], seen):
                    taken[call] = index
                    return True
        return False

    for index in range(len(fits)):
        place(index, set())
    return set(taken.values())


def _other_checks(spec: ToolCallsGrader, actual: Sequence[ActualToolCall]) -> Iterator[Check]:
    for tool in spec.not_called:
        times = sum(call.tool == tool for call in actual)
        yield Check(
            text=f"did not call {_shown(tool)}", passed=not times, reason=f"called {times} times" if times else None
        )
    if spec.max is not None:
        yield Check(
            text=f"made at most {spec.max} calls of tools",
            passed=len(actual) <= spec.max,
            reason=f"{len(actual)} calls" if len(actual) > spec.max else None,
        )


def _fits(want: ExpectedToolCall, call: ActualToolCall) -> bool:
    if want.tool != call.tool:
        return False
    arguments = parsed(call.arguments) if isinstance(call.arguments, str) else call.arguments
    if not want.args and not want.matching:
        return True
    return isinstance(arguments, dict) and _has(arguments, want.args) and _matches(arguments, want.matching)


def _has(value: Any, expected: Any) -> bool:
    """Whether a JSON value is the expected one, where objects may have more keys."""
    if isinstance(expected, dict):
        return isinstance(value, dict) and all(key in value and _has(value[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(_has(item, wanted) for item, wanted in zip(value, expected, strict=True))
        )
    # JSON's true is not 1, as it is in Python.
    return isinstance(value, bool) is isinstance(expected, bool) and bool(value == expected)


def _matches(arguments: dict[str, Any], patterns: dict[str, str]) -> bool:
    for name, pattern in patterns.items():
        value = arguments.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return False
        try:
            if not compile_pattern(pattern, ignore_case=False)(answer_text(value)):
                return False
        except BacktrackLimitExceeded:
            raise GraderError(f"The pattern of {_shown(name)} needs too much backtracking on this call") from None
    return True


def _details(want: ExpectedToolCall) -> str:
    named = [*want.args, *want.matching]
    return f" with {', '.join(map(_shown, named))}" if named else ""


def _shown(name: str) -> str:
    return plain_line(name, max_length=_MAX_NAME_CHARACTERS)


def check_latency(spec: LatencyGrader, result: Result) -> GraderRow:
    """Compare the time that the provider took; a replayed answer has that of the first time."""
    return _at_most(result.duration_ms, spec.max_ms, "ms")


def check_cost(spec: CostGrader, result: Result, price: Price | None) -> GraderRow:
    """Compare what the answer cost. Raises `GraderError` where that is not known."""
    cost = None if price is None else price.of_call(result.token_usage)
    if cost is None:
        what = "its target has no price" if price is None else "its target did not report its tokens"
        raise GraderError(f"The cost of the answer is not known: {what}")
    return _at_most(cost, spec.max_usd, "US dollars")


def check_tokens(spec: TokensGrader, result: Result) -> GraderRow:
    """Compare the tokens of the answer. Raises `GraderError` where they are not known."""
    usage = result.token_usage
    if usage is None:
        raise GraderError("Its target did not report the tokens of the answer")
    limits = (
        (usage.input, spec.max_input, "tokens of input"),
        (usage.output, spec.max_output, "tokens of output"),
        (usage.input + usage.output, spec.max_total, "tokens"),
    )
    return next(
        (
            row
            for number, limit, unit in limits
            if limit is not None and not (row := _at_most(number, limit, unit)).passed
        ),
        GraderRow(score=1.0, passed=True),
    )


def _at_most(number: float, limit: float, unit: str) -> GraderRow:
    if number <= limit:
        return GraderRow(score=1.0, passed=True)
    return GraderRow(score=0.0, passed=False, reason=f"{number:.6g} {unit}, and {limit:.6g} are allowed")
