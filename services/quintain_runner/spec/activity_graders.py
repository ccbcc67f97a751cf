"""The models of built-in graders that check what a target did for its answer: its tool calls, its time and its cost."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator

from quintain.contracts.values import Count
from quintain_runner.spec.grader_options import GraderOptions, NonEmptyString, SpecModel
from quintain_runner.untrusted import compile_pattern


class ExpectedToolCall(SpecModel):
    """A call of a tool that is expected."""

    tool: NonEmptyString
    """The name of the tool."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments that the call has: objects may have more keys, other values are equal."""
    matching: dict[str, NonEmptyString] = Field(default_factory=dict)
    """Of arguments that are texts or numbers, by name: a regular expression as in JSON Schema that is found in them."""

    @field_validator("matching")
    @classmethod
    def _validate_patterns(cls, patterns: dict[str, str]) -> dict[str, str]:
        """Check that the patterns compile."""
        for pattern in patterns.values():
            compile_pattern(pattern, ignore_case=False)
        return patterns


def _call_of_name(value: object) -> object:
    return {"tool": value} if isinstance(value, str) else value


#: A call that is expected, or only the name of its tool.
ToolCallSpec = Annotated[
    ExpectedToolCall, BeforeValidator(_call_of_name, json_schema_input_type=ExpectedToolCall | NonEmptyString)
]


class ToolCallsGrader(GraderOptions):
    """Passes if the target called the tools that it should; its score is the part of the checks that passed."""

    builtin: Literal["tool-calls"]
    called: list[ToolCallSpec] = Field(default_factory=list)
    """The calls that must be there, each a tool's name or an object with tool, args and matching."""
    called_field: NonEmptyString | None = None
    """The field of the row that has such a list, in place of called."""
    not_called: list[NonEmptyString] = Field(default_factory=list)
    """The tools that must not be called."""
    order: Literal["any", "in", "exact"] = "any"
    """any: in any order, with others between them; in: in this order; exact: these calls and no others, in this order.
    """
    max: Annotated[int, Field(ge=0)] | None = None
    """The most calls of tools in all."""

    @model_validator(mode="after")
    def _validate_expectation(self) -> Self:
        """Check that something is expected, and nothing that cannot be."""
        if self.called and self.called_field is not None:
            raise ValueError("called and called_field: give one of them")
        has_calls = bool(self.called) or self.called_field is not None
        if not has_calls and not self.not_called and self.max is None:
            raise ValueError("give called, called_field, not_called or max")
        if not has_calls and self.order != "any":
            raise ValueError("order: it is of the calls in called or called_field, and neither is given")
        both = sorted({call.tool for call in self.called} & set(self.not_called))
        if both:
            raise ValueError(f"not_called: {both[0]!r} is in called, too")
        return self


class LatencyGrader(GraderOptions):
    """Passes if the target answered in time: what counts is its provider's time, the first time that it was asked."""

    builtin: Literal["latency"]
    max_ms: Annotated[float, Field(gt=0)]
    """The most milliseconds."""


class CostGrader(GraderOptions):
    """Passes if the answer cost no more; the target's price must be known."""

    builtin: Literal["cost"]
    max_usd: Annotated[float, Field(ge=0)]
    """The most US dollars."""


class TokensGrader(GraderOptions):
    """Passes if the answer took no more tokens; the target must report them."""

    builtin: Literal["tokens"]
    max_input: Count | None = None
    """The most tokens of input, those from a cache included."""
    max_output: Count | None = None
    """The most tokens of output, reasoning included."""
    max_total: Count | None = None
    """The most tokens of both."""

    @model_validator(mode="after")
    def _validate_limit(self) -> Self:
        """Check that there is a limit."""
        if self.max_input is None and self.max_output is None and self.max_total is None:
            raise ValueError("give max_input, max_output or max_total")
        return self


#: Graders that check what a target did for its answer, without a call.
ActivityGrader = ToolCallsGrader | LatencyGrader | CostGrader | TokensGrader
