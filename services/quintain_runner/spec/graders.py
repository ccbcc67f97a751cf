"""The graders section of an evaluation file: one frozen model per kind, each with its own options. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from quintain.contracts.session import DEFAULT_MAX_CALLS, Count
from quintain.contracts.strings import TargetName
from quintain_runner.spec.patterns import compile_pattern
from quintain_runner.spec.validation_errors import ModelsByPlace, kind_tag

#: How long one execution of a program or a function may take where the file says nothing, in seconds; AgentV's.
DEFAULT_TIMEOUT_SECONDS = 120.0

#: How long a judge model may take where the file says nothing, its wait in the queue included, in seconds.
JUDGE_TIMEOUT_SECONDS = 600.0

#: A grader's name is a key of the results and a part of its session's label: one line of text.
GraderName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,64}$")]
NonEmptyString = Annotated[str, StringConstraints(min_length=1)]
Seconds = Annotated[float, Field(gt=0)]
Tolerance = Annotated[float, Field(ge=0)]


class SpecModel(BaseModel):
    """A part of a file that a person wrote: nothing is overlooked, nothing converted."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class GraderCalls(SpecModel):
    """What one execution of a grader may call."""

    max_calls: Count = DEFAULT_MAX_CALLS
    """How many calls one execution may make; they draw on the run's budget."""


class _GraderSpec(SpecModel):
    name: GraderName
    """What it is called in the results."""


class _ProgramSpec(_GraderSpec):
    judge_target: TargetName | None = None
    """Its default target; else the judged target's own judge_target, else that target itself."""
    target: GraderCalls = GraderCalls()
    """What it may call."""
    timeout_seconds: Seconds = DEFAULT_TIMEOUT_SECONDS
    """How long one execution may take, in seconds."""
    config: dict[str, JsonValue] | None = None
    """What it reads as config, as it is."""


class CommandGrader(_ProgramSpec):
    """A program under AgentV's contract: a case as JSON on stdin, a verdict as JSON on stdout."""

    command: Annotated[list[NonEmptyString], Field(min_length=1)]
    """The program and its arguments; no shell reads them."""
    cwd: NonEmptyString | None = None
    """Where it runs, from the evaluation file's folder; that folder if absent."""
    batch: Literal["stdin-lines"] | None = None
    """Kept warm: it reads a line of JSON for each case and prints a line of JSON for each, until its stdin ends."""


class FunctionGrader(_ProgramSpec):
    """A Python function with @quintain.grader, run in a process of its own kept warm."""

    function: NonEmptyString
    """module:name, found in the evaluation file's folder."""

    @field_validator("function")
    @classmethod
    def _validate_function_path(cls, name: str) -> str:
        module, _, function = name.partition(":")
        if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError("write it as module:name, such as judges:polite for the function polite of judges.py")
        return name


class ExactGrader(_GraderSpec):
    """The answer is what is expected, but for white space around both."""

    builtin: Literal["exact"]
    ignore_case: bool = False
    """Whether capital and small letters are one."""


class ContainsGrader(_GraderSpec):
    """What is expected stands somewhere in the answer."""

    builtin: Literal["contains"]
    ignore_case: bool = False
    """Whether capital and small letters are one."""


class RegexGrader(_GraderSpec):
    """The pattern is found somewhere in the answer."""

    builtin: Literal["regex"]
    pattern: NonEmptyString
    """A regular expression as in JSON Schema (ECMA 262); ^ and $ are the answer's ends."""
    ignore_case: bool = False
    """Whether capital and small letters are one."""

    @model_validator(mode="after")
    def _validate_pattern(self) -> Self:
        compile_pattern(self.pattern, ignore_case=self.ignore_case)
        return self


class NumericGrader(_GraderSpec):
    """A number of the answer is the expected one, within a tolerance."""

    builtin: Literal["numeric"]
    tolerance: Tolerance = 0.0
    """How far off it may be."""
    relative_tolerance: Tolerance = 0.0
    """How far off it may be as a share of what is expected; the wider of the two counts."""
    take: Literal["first", "last", "only"] = "last"
    """Which number of the answer is meant; only: the answer holds one and no more."""


class JsonSchemaGrader(_GraderSpec):
    """The answer is JSON, and the schema allows it."""

    builtin: Literal["json-schema"]
    json_schema: Annotated[NonEmptyString | dict[str, JsonValue], Field(alias="schema")]
    """The schema, or the path of its file from the evaluation file's folder."""
    fenced: bool = False
    """Whether the JSON may stand in a fenced block, the answer's only one."""


class JudgeGrader(_GraderSpec):
    """A model grades the answer: one call, and a verdict as JSON."""

    builtin: Literal["llm-judge"]
    prompt: NonEmptyString
    """The path of the judge's instructions from the evaluation file's folder."""
    judge_target: TargetName | None = None
    """Who judges; else the judged target's own judge_target, else that target itself."""
    show: Annotated[list[NonEmptyString], Field(min_length=1)] = ["question", "expected", "output"]
    """What the judge is shown: question, expected, output, and any field of the row."""
    structured: bool = False
    """Whether the provider holds the verdict to its schema (openai and anthropic can)."""
    timeout_seconds: Seconds = JUDGE_TIMEOUT_SECONDS
    """How long the judge may take, its wait in the queue included, in seconds."""

    @field_validator("show")
    @classmethod
    def _validate_show(cls, show: list[str]) -> list[str]:
        if "output" not in show:
            raise ValueError("it leaves out output, and that is what is judged")
        return show


BuiltinGrader = ExactGrader | ContainsGrader | RegexGrader | NumericGrader | JsonSchemaGrader

#: The kinds that may call targets by themselves, with a session of their own.
ProgramGrader = CommandGrader | FunctionGrader

GRADER_KINDS: Final[Mapping[str, type[_GraderSpec]]] = {
    "command": CommandGrader,
    "function": FunctionGrader,
    "exact": ExactGrader,
    "contains": ContainsGrader,
    "regex": RegexGrader,
    "numeric": NumericGrader,
    "json-schema": JsonSchemaGrader,
    "llm-judge": JudgeGrader,
}


class InvalidGrader(_ProgramSpec):
    """What is of no kind, or of several: it is always refused, with the mend."""

    command: JsonValue = None
    function: JsonValue = None
    builtin: Literal["exact", "contains", "regex", "numeric", "json-schema", "llm-judge"] | None = None

    @model_validator(mode="after")
    def _reject(self) -> Self:
        raise ValueError(
            'give one of command (such as ["python", "judge.py"]), function (such as judges:polite) and builtin '
            "(such as exact)"
        )


_INVALID_KIND: Final = "undecided"


def _kind_of_input(grader: object) -> str:
    if isinstance(grader, _GraderSpec):
        return next((name for name, kind in GRADER_KINDS.items() if type(grader) is kind), _INVALID_KIND)
    if not isinstance(grader, dict):
        return _INVALID_KIND
    given = [key for key in ("command", "function", "builtin") if grader.get(key) is not None]
    if len(given) != 1:
        return _INVALID_KIND
    kind = given[0] if given[0] != "builtin" else grader["builtin"]
    return kind if isinstance(kind, str) and kind in GRADER_KINDS else _INVALID_KIND


GraderSpec = Annotated[
    Annotated[CommandGrader, Tag(kind_tag("command"))]
    | Annotated[FunctionGrader, Tag(kind_tag("function"))]
    | Annotated[ExactGrader, Tag(kind_tag("exact"))]
    | Annotated[ContainsGrader, Tag(kind_tag("contains"))]
    | Annotated[RegexGrader, Tag(kind_tag("regex"))]
    | Annotated[NumericGrader, Tag(kind_tag("numeric"))]
    | Annotated[JsonSchemaGrader, Tag(kind_tag("json-schema"))]
    | Annotated[JudgeGrader, Tag(kind_tag("llm-judge"))]
    | SkipJsonSchema[Annotated[InvalidGrader, Tag(kind_tag(_INVALID_KIND))]],
    Discriminator(lambda grader: kind_tag(_kind_of_input(grader))),
]


def grader_kind(grader: GraderSpec) -> str:
    """The name of a grader's kind: command, function, or the built-in one's."""
    return next((name for name, kind in GRADER_KINDS.items() if isinstance(grader, kind)), _INVALID_KIND)


def max_calls_of(grader: GraderSpec) -> int:
    """How many calls one execution may make at most."""
    if isinstance(grader, CommandGrader | FunctionGrader):
        return grader.target.max_calls
    return int(isinstance(grader, JudgeGrader))


#: Which model stands at which place of a list of graders, for the sentences about its mistakes.
GRADER_MODELS: Final[ModelsByPlace] = {
    **{(kind_tag(name),): kind for name, kind in GRADER_KINDS.items()},
    **{(kind_tag(name), "target"): GraderCalls for name in ("command", "function", _INVALID_KIND)},
    (kind_tag(_INVALID_KIND),): InvalidGrader,
}
