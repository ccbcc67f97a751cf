"""The ``graders`` section of an evaluation file: one frozen model for each kind of grader, with its options. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, Union, get_args

from pydantic import (
    AfterValidator,
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
from quintain_runner.spec.asking_graders import JudgeGrader, PairwiseGrader, RubricCriterion, SimilarGrader
from quintain_runner.spec.builtin_graders import ActivityGrader, ExpectedToolCall, TextGrader
from quintain_runner.spec.grader_options import GraderOptions, NonEmptyString, Seconds, SpecModel

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
    cacheable: bool = False
    """Whether runs may take its verdicts from their cache."""
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


def named_graders(graders: object, taken: Collection[str] = ()) -> object:
    """A list of graders as it was read, in which each has a name: its own, or its kind with a number that makes it one
    that neither another of the list nor ``taken`` has. What is no such list is left to its validation.
    """
    if not isinstance(graders, list):
        return graders
    used = {*taken, *(grader["name"] for grader in graders if isinstance(grader, dict) and _has_name(grader))}
    named = []
    for grader in graders:
        if isinstance(grader, dict) and "name" not in grader:
            kind = f"{'not-' if grader.get('not') is True else ''}{_kind_of_input(grader)}"
            names = (f"{kind}-{number}" for number in count(2))
            name = kind if kind not in used else next(name for name in names if name not in used)
            used.add(name)
            named.append({"name": name, **grader})
        else:
            named.append(grader)
    return named


def _has_name(grader: dict[str, object]) -> bool:
    return isinstance(grader.get("name"), str)


def _check_parts(parts: list[GraderSpec]) -> list[GraderSpec]:
    """Check that the graders of a list grade one answer, and run no programs."""
    if others := [part.name for part in parts if isinstance(part, ProgramGrader | PairwiseGrader)]:
        raise ValueError(f"{others[0]}: a list has built-in graders of single answers")
    if reduced := [part.name for part in parts if part.reduce is not None]:
        raise ValueError(f"{reduced[0]}: reduce is of the list, and not of its graders")
    return parts


#: The graders of a list.
_Parts = Annotated[
    "list[GraderSpec]", Field(min_length=1), BeforeValidator(named_graders), AfterValidator(_check_parts)
]


class AllGrader(GraderOptions):
    """Passes if all graders of a list pass the answer; its score is the mean of theirs, by their weights."""

    all: _Parts
    """The graders: built-in ones, or lists of them again. One of weight 0 is shown, and cannot fail the others."""


class AnyGrader(GraderOptions):
    """Passes if one grader of a list passes the answer; its score is the highest of theirs."""

    any: _Parts
    """The graders: built-in ones, or lists of them again. One of weight 0 is shown, and does not count."""


#: Graders that combine others.
CombiningGrader = AllGrader | AnyGrader

#: Built-in graders that make no calls.
BuiltinGrader = TextGrader | ActivityGrader

#: Built-in graders that ask a target.
AskingGrader = SimilarGrader | JudgeGrader | PairwiseGrader

#: Graders that run user code and may call targets through a session of their own.
ProgramGrader = CommandGrader | FunctionGrader

#: Graders that may call a target by default.
CallingGrader = ProgramGrader | AskingGrader

#: The models of built-in graders by the names that ``builtin`` gives them.
_BUILTINS: Final[Mapping[str, type[GraderOptions]]] = {
    get_args(model.model_fields["builtin"].annotation)[0]: model for model in get_args(BuiltinGrader | AskingGrader)
}

GRADER_KINDS: Final[Mapping[str, type[GraderOptions]]] = {
    "command": CommandGrader,
    "function": FunctionGrader,
    "all": AllGrader,
    "any": AnyGrader,
    **_BUILTINS,
}

_BuiltinName: Any = Literal[tuple(_BUILTINS)]


class InvalidGrader(_ProgramSpec):
    """A grader with no kind or with several kinds; its validation always fails, with a message that names the fix."""

    command: JsonValue = None
    function: JsonValue = None
    all: JsonValue = None
    any: JsonValue = None
    builtin: _BuiltinName | None = None

    @model_validator(mode="after")
    def _reject(self) -> Self:
        """Reject every value with the message about the kinds."""
        raise ValueError(
            'give one of command (such as ["python", "judge.py"]), function (such as judges:polite), builtin '
            "(such as exact), and all or any (a list of graders)"
        )


_INVALID_KIND: Final = "undecided"

#: The keys that say the kind of a grader, of which it has one.
_KIND_KEYS: Final = ("command", "function", "all", "any", "builtin")


def _kind_of_input(grader: object) -> str:
    """The kind that a grader's raw input selects, or the invalid kind: the discriminator of `GraderSpec`."""
    if isinstance(grader, GraderOptions):
        return next((name for name, kind in GRADER_KINDS.items() if type(grader) is kind), _INVALID_KIND)
    if not isinstance(grader, dict):
        return _INVALID_KIND
    present_keys = [key for key in _KIND_KEYS if grader.get(key) is not None]
    if len(present_keys) != 1:
        return _INVALID_KIND
    kind = present_keys[0] if present_keys[0] != "builtin" else grader["builtin"]
    return kind if isinstance(kind, str) and kind in GRADER_KINDS else _INVALID_KIND


if TYPE_CHECKING:
    GraderSpec = ProgramGrader | CombiningGrader | BuiltinGrader | AskingGrader | InvalidGrader
else:
    GraderSpec = Annotated[
        Union[
            *(Annotated[model, Tag(kind_tag(kind))] for kind, model in GRADER_KINDS.items()),
            SkipJsonSchema[Annotated[InvalidGrader, Tag(kind_tag(_INVALID_KIND))]],
        ],
        Discriminator(lambda grader: kind_tag(_kind_of_input(grader))),
    ]


def grader_kind(grader: GraderSpec) -> str:
    """The name of a grader's kind: ``command``, ``function``, or the name of the built-in grader."""
    return next((name for name, kind in GRADER_KINDS.items() if isinstance(grader, kind)), _INVALID_KIND)


def column_names_of(grader: GraderSpec) -> list[str]:
    """The names of a grader's columns in every table: its own, and those of the criteria of its rubric."""
    rubric = grader.rubric if isinstance(grader, JudgeGrader) else []
    return [grader.name, *(criterion_name(grader.name, criterion.id) for criterion in rubric)]


def parts_of(grader: GraderSpec) -> list[GraderSpec]:
    """The graders of a list; none of a grader that is no list."""
    return grader.all if isinstance(grader, AllGrader) else grader.any if isinstance(grader, AnyGrader) else []


def single_graders(graders: Iterable[GraderSpec]) -> Iterator[GraderSpec]:
    """Iterate over the graders, with those of a list, and of lists in it, in place of the list."""
    for grader in graders:
        yield from single_graders(parts) if (parts := parts_of(grader)) else (grader,)


#: So many characters of a list's name stand in those of its graders, which a call has room for.
_NAME_CHARACTERS: Final = 48


def part_specs(spec: GraderSpec) -> list[GraderSpec]:
    """The graders of a list, each with a name that no other grader of the evaluation has."""
    names = (criterion_name(spec.name[:_NAME_CHARACTERS], str(number)) for number, _ in enumerate(parts_of(spec), 1))
    return [part.model_copy(update={"name": name}) for part, name in zip(parts_of(spec), names, strict=True)]


def judges_among(graders: Iterable[GraderSpec], *, is_negated: bool = False) -> Iterator[JudgeGrader]:
    """Iterate over the judges, those of lists too, each as a grader by itself: with the name that it has in results, of
    weight 1, and turned around where its list is."""
    for grader in graders:
        negate = grader.negate != is_negated
        if isinstance(grader, JudgeGrader):
            yield grader.model_copy(update={"negate": negate, "weight": 1.0, "reduce": None})
        yield from judges_among(part_specs(grader), is_negated=negate)


def max_calls_of(grader: GraderSpec) -> int:
    """The most calls that one execution of this grader can make: its limit for programs, 1 for each target it asks.

    An execution of a pairwise grader is one order of one pair, and one of a list runs each of its graders once.
    """
    if isinstance(grader, CombiningGrader):
        return sum(max_calls_of(one) for one in parts_of(grader))
    if isinstance(grader, CommandGrader | FunctionGrader):
        return grader.target.max_calls
    if isinstance(grader, JudgeGrader):
        return len(grader.judge_targets or [grader])
    return int(isinstance(grader, AskingGrader))


def judge_target_of(grader: CallingGrader, target: str, judge_targets: Mapping[str, str | None]) -> str:
    """The default target of a grader: its own ``judge_target``, else the one configured for ``target``, else
    ``target``.
    """
    if isinstance(grader, SimilarGrader):
        return grader.embedding_target
    return grader.judge_target or judge_targets.get(target) or target


def judges_of(grader: GraderSpec, target: str, judge_targets: Mapping[str, str | None]) -> tuple[str, ...]:
    """The targets that a grader calls by default for answers of ``target``: those of its jury, or one; those of all
    graders of a list, and none of one that makes no calls.
    """
    if isinstance(grader, CombiningGrader):
        every = (judge for part in parts_of(grader) for judge in judges_of(part, target, judge_targets))
        return tuple(dict.fromkeys(every))
    if isinstance(grader, JudgeGrader) and grader.judge_targets is not None:
        return tuple(grader.judge_targets)
    return (judge_target_of(grader, target, judge_targets),) if isinstance(grader, CallingGrader) else ()


_SINGLE_MODELS: Final[ModelsByPlace] = {
    **{(kind_tag(name),): kind for name, kind in GRADER_KINDS.items()},
    **{(kind_tag(name), "target"): GraderCalls for name in ("command", "function", _INVALID_KIND)},
    (kind_tag("tool-calls"), "called", "*"): ExpectedToolCall,
    (kind_tag("llm-judge"), "rubric", "*"): RubricCriterion,
    (kind_tag(_INVALID_KIND),): InvalidGrader,
}

#: The model at each place of a list of graders, used to suggest known keys in error messages.
GRADER_MODELS: Final[ModelsByPlace] = {
    (*within, *place): model
    for within in ((), *((kind_tag(kind), kind, "*") for kind in ("all", "any")))
    for place, model in _SINGLE_MODELS.items()
}
