"""The models of built-in graders without calls: of an answer's text, and of what a target did for it. No I/O."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, JsonValue, field_validator, model_validator

from quintain.contracts.values import Count
from quintain.graders import Case
from quintain_runner.spec.grader_options import GraderOptions, NonEmptyString, SpecModel, Tolerance
from quintain_runner.spec.right_answers import DecimalMark, answer_text, parse_number, right_answers, unreadable_number
from quintain_runner.spec.templates import parse_template
from quintain_runner.untrusted import compile_pattern

#: What begins something of a template that is no text.
_MARKUP = re.compile(r"\{[{%#]")


class ComparingGrader(GraderOptions):
    """A grader that compares the answer with what is right. ``takes`` says what that is."""

    takes: ClassVar[str] = "comparable"

    value: JsonValue = None
    """What is right, in place of the case's expected; texts are templates. Of a list any is right."""

    @model_validator(mode="after")
    def _validate_value(self) -> Self:
        """Check that it can be compared with, as far as that depends on no case."""
        for template in self.templates:
            parse_template(template)
        if self.has_value and not self.templates and (problem := self.problem_of(self.value)) is not None:
            raise ValueError(f"value: {problem}")
        return self

    def answers(self, case: Case) -> list[JsonValue]:
        """The right answers to a case. Raises `TemplateError` where a text of value needs what the case lacks."""
        if not self.has_value or not self.templates:
            return right_answers(self.value if self.has_value else case.expected)
        place = f"the grader {self.name}, value"
        return [
            parse_template(one, place).render(case) if isinstance(one, str) else one
            for one in right_answers(self.value)
        ]

    @property
    def templates(self) -> list[str]:
        """The texts of value that a case fills; none of a case's own grader."""
        texts = [] if self.is_data else [one for one in right_answers(self.value) if isinstance(one, str)]
        return [text for text in texts if _MARKUP.search(text)]

    @property
    def has_value(self) -> bool:
        """Whether it says itself what is right."""
        return "value" in self.model_fields_set

    def problem_of(self, expected: JsonValue) -> str | None:
        """Why an answer cannot be compared with this; None if it can."""
        answers = right_answers(expected)
        if not answers:
            return "nothing is right: " + ("the list is empty" if isinstance(expected, list) else "it is null")
        return next((problem for one in answers if (problem := self._problem_of_one(one)) is not None), None)

    def _problem_of_one(self, answer: JsonValue) -> str | None:
        """Why an answer cannot be compared with one right answer."""
        if isinstance(answer, str | int | float):
            return None
        return f"{answer_text(answer)[:40]} is no text; write it in quotes, or take a grader of JSON"


class _SearchingGrader(ComparingGrader):
    """A grader that looks for a text."""

    ignore_case: bool = False
    """Whether to ignore the case of letters."""

    def _problem_of_one(self, answer: JsonValue) -> str | None:
        return "an empty text is in every answer" if answer == "" else super()._problem_of_one(answer)


class ExactGrader(ComparingGrader):
    """Passes if the answer equals what is right; an object is compared with the answer's JSON."""

    builtin: Literal["exact"]
    ignore_case: bool = False
    """Whether to ignore the case of letters."""
    strip: bool = True
    """Whether to ignore white space around the answer and around what is right."""

    def _problem_of_one(self, answer: JsonValue) -> str | None:
        return None if isinstance(answer, dict | list) else super()._problem_of_one(answer)


class ContainsGrader(_SearchingGrader):
    """Passes if the answer contains what is right."""

    builtin: Literal["contains"]


class StartsWithGrader(_SearchingGrader):
    """Passes if the answer begins with what is right."""

    builtin: Literal["starts-with"]


class EndsWithGrader(_SearchingGrader):
    """Passes if the answer ends with what is right."""

    builtin: Literal["ends-with"]


class RegexGrader(GraderOptions):
    """Passes if the pattern matches somewhere in the answer."""

    builtin: Literal["regex"]
    pattern: Annotated[
        NonEmptyString | list[NonEmptyString],
        Field(min_length=1, validation_alias=AliasChoices("pattern", "value")),
    ]
    """A regular expression as in JSON Schema (ECMA 262); ^ and $ match the start and end of the answer. Of a list any
    may match. It may also be given as value.
    """
    ignore_case: bool = False
    """Whether to ignore the case of letters."""

    @property
    def patterns(self) -> list[str]:
        """The patterns, of which any may match."""
        return [self.pattern] if isinstance(self.pattern, str) else self.pattern

    @model_validator(mode="after")
    def _validate_pattern(self) -> Self:
        """Check that the patterns compile."""
        for pattern in self.patterns:
            compile_pattern(pattern, ignore_case=self.ignore_case)
        return self


class NumericGrader(ComparingGrader):
    """Passes if a number in the answer equals the right number within a tolerance; both are exact decimal numbers."""

    takes: ClassVar[str] = "a number"

    builtin: Literal["numeric"]
    tolerance: Tolerance = 0.0
    """The largest absolute difference that passes."""
    relative_tolerance: Tolerance = 0.0
    """The largest difference that passes, as a fraction of the right number; the wider of the two tolerances
    applies.
    """
    take: Literal["first", "last", "only"] = "last"
    """Which number of the answer to compare; only: the answer must contain exactly one number."""
    decimal: DecimalMark = "."
    """The character before the fraction of a number; the other one of point and comma groups its digits by three."""

    def _problem_of_one(self, answer: JsonValue) -> str | None:
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            return f"{answer_text(answer)[:40]} is not a number"
        return None if self.number_of(answer) is not None else unreadable_number(str(answer), self.decimal)

    def number_of(self, answer: JsonValue) -> Decimal | None:
        """The exact value of a right answer; None where it cannot be read as a number."""
        if isinstance(answer, str):
            return parse_number(answer, self.decimal)
        return Decimal(repr(answer)) if isinstance(answer, int | float) else None


class ChoiceGrader(GraderOptions):
    """Passes if the answer names a right one of the case's choices, by its letter or its text."""

    builtin: Literal["choice"]


class EditDistanceGrader(ComparingGrader):
    """Passes if few characters must be inserted, deleted or replaced to make what is right of the answer; its score is
    the similarity of the two, 1 without the distance as a part of the longer one's length.
    """

    builtin: Literal["edit-distance"]
    max: Count | None = None
    """The largest distance that passes. If absent, threshold says what passes."""
    ignore_case: bool = False
    """Whether to ignore the case of letters."""

    @model_validator(mode="after")
    def _validate_limit(self) -> Self:
        """Check that something says what passes."""
        if (self.max is None) == (self.threshold is None):
            raise ValueError("give one of max, a number of characters, and threshold, a similarity from 0 to 1")
        return self


class JsonSchemaGrader(GraderOptions):
    """Passes if the answer is JSON that is valid under the schema."""

    builtin: Literal["json-schema"]
    json_schema: Annotated[NonEmptyString | dict[str, JsonValue], Field(alias="schema")]
    """The schema, or the path of its file, relative to the evaluation file's folder."""
    fenced: bool = False
    """Whether the JSON may stand in a fenced code block, if the answer has only one."""


class ContainsJsonGrader(GraderOptions):
    """Passes if a JSON object stands somewhere in the answer; with a schema, an object or a list that it allows."""

    builtin: Literal["contains-json"]
    json_schema: Annotated[NonEmptyString | dict[str, JsonValue] | None, Field(alias="schema")] = None
    """The schema, or the path of its file, relative to the evaluation file's folder."""


#: Graders that compare the text of an answer with what is right, without a call.
ComparingTextGrader = (
    ExactGrader | ContainsGrader | StartsWithGrader | EndsWithGrader | NumericGrader | EditDistanceGrader
)

#: Graders that read the text of an answer, without a call.
TextGrader = ComparingTextGrader | ChoiceGrader | RegexGrader | JsonSchemaGrader | ContainsJsonGrader


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
