"""The ``graders`` section of an evaluation file: one frozen model for each kind of grader, with its options. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from quintain.config.file_errors import ModelsByPlace, kind_tag
from quintain.contracts.money import MaxCostUsd
from quintain.contracts.session import DEFAULT_MAX_CALLS
from quintain.contracts.values import Count, TargetName
from quintain.programs.sandbox import SandboxOption
from quintain_runner.results.row import criterion_name
from quintain_runner.spec.activity_graders import (
    CostGrader,
    ExpectedToolCall,
    LatencyGrader,
    TokensGrader,
    ToolCallsGrader,
)
from quintain_runner.spec.comparing_graders import PairwiseGrader, SimilarGrader
from quintain_runner.spec.grader_options import GraderOptions, NonEmptyString, Seconds, SpecModel, Tolerance
from quintain_runner.spec.judge_graders import JudgeGrader, RubricCriterion
from quintain_runner.untrusted import compile_pattern

#: Default timeout of one execution of a command or function grader, in seconds; the same as AgentV's.
DEFAULT_TIMEOUT_SECONDS = 120.0


class GraderCalls(SpecModel):
    """The limits on the calls of one execution of a grader."""

    max_calls: Count = DEFAULT_MAX_CALLS
    """The most calls that one execution may make; they are charged to the run's budget."""
    max_cost_usd: MaxCostUsd | None = None
    """The most that they may cost, in US dollars. Under a limit in money a row begins when so much is left for it."""


def _calls_of_true(value: object) -> object:
    return {} if value is True else value


class _ProgramSpec(GraderOptions):
    """The options of graders that run user code: commands and Python functions."""

    judge_target: TargetName | None = None
    """The default target of the grader's session. If absent, the judge_target that the configuration names for the
    target under test; failing that, the target under test itself.
    """
    target: Annotated[
        GraderCalls, BeforeValidator(_calls_of_true, json_schema_input_type=GraderCalls | Literal[True])
    ] = GraderCalls()
    """Limits on the calls of the grader; true, as AgentV has it, is the default limit."""
    timeout_seconds: Seconds = DEFAULT_TIMEOUT_SECONDS
    """The timeout of one execution, in seconds."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the grader's process."""
    env_from: list[NonEmptyString] = Field(default_factory=list)
    """Names of variables that it also gets from the environment of the run; others but PATH, HOME, the locale, proxies
    and certificates are not passed on.
    """
    run_as: NonEmptyString | None = None
    """The user of this machine as whom it runs, if Quintain runs as root."""
    sandbox: SandboxOption = None
    """bwrap: it runs in a sandbox of bubblewrap, which reaches no network but the gateway, and of this machine's files
    only the evaluation's folder and the installed programs.
    """
    config: dict[str, JsonValue] | None = None
    """Any value; the grader receives it unchanged as config."""

    @property
    def has_explicit_limit(self) -> bool:
        """Whether the evaluation file limits the grader's calls."""
        return "target" in self.model_fields_set and "max_calls" in self.target.model_fields_set


class CommandGrader(_ProgramSpec):
    """A program that follows AgentV's contract: it reads a case as JSON on stdin and prints a verdict as JSON on
    stdout.
    """

    command: Annotated[list[NonEmptyString], Field(min_length=1)]
    """The program and its arguments; it is started without a shell."""
    cwd: NonEmptyString | None = None
    """The folder to run the program in, relative to the evaluation file's folder. If absent, that folder."""
    batch: Literal["stdin-lines"] | None = None
    """stdin-lines: keep the program running. For each case it reads one line of JSON and prints one line of JSON, until
    its stdin ends.
    """


class FunctionGrader(_ProgramSpec):
    """A Python function with @quintain.grader, run in a separate process that is reused for many cases."""

    function: NonEmptyString
    """The function as module:name; the module is imported from the evaluation file's folder."""

    @field_validator("function")
    @classmethod
    def _validate_function_path(cls, name: str) -> str:
        """Check that the function is written as ``module:name``."""
        module, _, function = name.partition(":")
        if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError("write it as module:name, such as judges:polite for the function polite of judges.py")
        return name


class ExactGrader(GraderOptions):
    """Passes if the answer equals the expected text; white space around either is ignored."""

    builtin: Literal["exact"]
    ignore_case: bool = False
    """Whether to ignore the case of letters."""


class ContainsGrader(GraderOptions):
    """Passes if the answer contains the expected text."""

    builtin: Literal["contains"]
    ignore_case: bool = False
    """Whether to ignore the case of letters."""


class RegexGrader(GraderOptions):
    """Passes if the pattern matches somewhere in the answer."""

    builtin: Literal["regex"]
    pattern: NonEmptyString
    """A regular expression as in JSON Schema (ECMA 262); ^ and $ match the start and end of the answer."""
    ignore_case: bool = False
    """Whether to ignore the case of letters."""

    @model_validator(mode="after")
    def _validate_pattern(self) -> Self:
        """Check that the pattern compiles."""
        compile_pattern(self.pattern, ignore_case=self.ignore_case)
        return self


class NumericGrader(GraderOptions):
    """Passes if a number in the answer equals the expected number within a tolerance."""

    builtin: Literal["numeric"]
    tolerance: Tolerance = 0.0
    """The largest absolute difference that passes."""
    relative_tolerance: Tolerance = 0.0
    """The largest difference that passes, as a fraction of the expected number; the wider of the two tolerances
    applies.
    """
    take: Literal["first", "last", "only"] = "last"
    """Which number of the answer to compare; only: the answer must contain exactly one number."""


class JsonSchemaGrader(GraderOptions):
    """Passes if the answer is JSON that is valid under the schema."""

    builtin: Literal["json-schema"]
    json_schema: Annotated[NonEmptyString | dict[str, JsonValue], Field(alias="schema")]
    """The schema, or the path of its file, relative to the evaluation file's folder."""
    fenced: bool = False
    """Whether the JSON may stand in a fenced code block, if the answer has only one."""


BuiltinGrader = (
    ExactGrader
    | ContainsGrader
    | RegexGrader
    | NumericGrader
    | JsonSchemaGrader
    | ToolCallsGrader
    | LatencyGrader
    | CostGrader
    | TokensGrader
)

#: Built-in graders that ask a target.
AskingGrader = SimilarGrader | JudgeGrader | PairwiseGrader

#: Graders that run user code and may call targets through a session of their own.
ProgramGrader = CommandGrader | FunctionGrader

#: Graders that may call a target by default.
CallingGrader = ProgramGrader | AskingGrader

GRADER_KINDS: Final[Mapping[str, type[GraderOptions]]] = {
    "command": CommandGrader,
    "function": FunctionGrader,
    "exact": ExactGrader,
    "contains": ContainsGrader,
    "regex": RegexGrader,
    "numeric": NumericGrader,
    "json-schema": JsonSchemaGrader,
    "tool-calls": ToolCallsGrader,
    "latency": LatencyGrader,
    "cost": CostGrader,
    "tokens": TokensGrader,
    "similar": SimilarGrader,
    "llm-judge": JudgeGrader,
    "pairwise": PairwiseGrader,
}


class InvalidGrader(_ProgramSpec):
    """A grader with no kind or with several kinds; its validation always fails, with a message that names the fix."""

    command: JsonValue = None
    function: JsonValue = None
    builtin: (
        Literal[
            "exact",
            "contains",
            "regex",
            "numeric",
            "json-schema",
            "tool-calls",
            "latency",
            "cost",
            "tokens",
            "similar",
            "llm-judge",
            "pairwise",
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _reject(self) -> Self:
        """Reject every value with the message about the kinds."""
        raise ValueError(
            'give one of command (such as ["python", "judge.py"]), function (such as judges:polite) and builtin '
            "(such as exact)"
        )


_INVALID_KIND: Final = "undecided"


def _kind_of_input(grader: object) -> str:
    """The kind that a grader's raw input selects, or the invalid kind: the discriminator of `GraderSpec`."""
    if isinstance(grader, GraderOptions):
        return next((name for name, kind in GRADER_KINDS.items() if type(grader) is kind), _INVALID_KIND)
    if not isinstance(grader, dict):
        return _INVALID_KIND
    present_keys = [key for key in ("command", "function", "builtin") if grader.get(key) is not None]
    if len(present_keys) != 1:
        return _INVALID_KIND
    kind = present_keys[0] if present_keys[0] != "builtin" else grader["builtin"]
    return kind if isinstance(kind, str) and kind in GRADER_KINDS else _INVALID_KIND


GraderSpec = Annotated[
    Annotated[CommandGrader, Tag(kind_tag("command"))]
    | Annotated[FunctionGrader, Tag(kind_tag("function"))]
    | Annotated[ExactGrader, Tag(kind_tag("exact"))]
    | Annotated[ContainsGrader, Tag(kind_tag("contains"))]
    | Annotated[RegexGrader, Tag(kind_tag("regex"))]
    | Annotated[NumericGrader, Tag(kind_tag("numeric"))]
    | Annotated[JsonSchemaGrader, Tag(kind_tag("json-schema"))]
    | Annotated[ToolCallsGrader, Tag(kind_tag("tool-calls"))]
    | Annotated[LatencyGrader, Tag(kind_tag("latency"))]
    | Annotated[CostGrader, Tag(kind_tag("cost"))]
    | Annotated[TokensGrader, Tag(kind_tag("tokens"))]
    | Annotated[SimilarGrader, Tag(kind_tag("similar"))]
    | Annotated[JudgeGrader, Tag(kind_tag("llm-judge"))]
    | Annotated[PairwiseGrader, Tag(kind_tag("pairwise"))]
    | SkipJsonSchema[Annotated[InvalidGrader, Tag(kind_tag(_INVALID_KIND))]],
    Discriminator(lambda grader: kind_tag(_kind_of_input(grader))),
]


def grader_kind(grader: GraderSpec) -> str:
    """The name of a grader's kind: ``command``, ``function``, or the name of the built-in grader."""
    return next((name for name, kind in GRADER_KINDS.items() if isinstance(grader, kind)), _INVALID_KIND)


def column_names_of(grader: GraderSpec) -> list[str]:
    """The names of a grader's columns in every table: its own, and those of the criteria of its rubric."""
    rubric = grader.rubric if isinstance(grader, JudgeGrader) else []
    return [grader.name, *(criterion_name(grader.name, criterion.id) for criterion in rubric)]


def max_calls_of(grader: GraderSpec) -> int:
    """The most calls that one execution of this grader can make: its limit for programs, 1 for each target it asks.

    An execution of a pairwise grader is one order of one pair.
    """
    if isinstance(grader, CommandGrader | FunctionGrader):
        return grader.target.max_calls
    if isinstance(grader, JudgeGrader):
        return len(grader.judge_targets or [grader])
    return int(isinstance(grader, AskingGrader))


#: The model at each place of a list of graders, used to suggest known keys in error messages.
GRADER_MODELS: Final[ModelsByPlace] = {
    **{(kind_tag(name),): kind for name, kind in GRADER_KINDS.items()},
    **{(kind_tag(name), "target"): GraderCalls for name in ("command", "function", _INVALID_KIND)},
    (kind_tag("tool-calls"), "called", "*"): ExpectedToolCall,
    (kind_tag("llm-judge"), "rubric", "*"): RubricCriterion,
    (kind_tag(_INVALID_KIND),): InvalidGrader,
}
