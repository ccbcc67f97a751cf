"""The graders that a case has of its own, beside the evaluation's: read, counted, and what they call. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from quintain.config.file_errors import validation_messages
from quintain.graders import Case
from quintain.runtime.text_files import InvalidLine
from quintain_runner.spec.comparing_graders import PairwiseGrader, SimilarGrader
from quintain_runner.spec.grader_options import IS_DATA
from quintain_runner.spec.graders import (
    GRADER_MODELS,
    CommandGrader,
    FunctionGrader,
    GraderSpec,
    column_names_of,
    grader_kind,
    judges_of,
    max_calls_of,
    named_graders,
    single_graders,
)
from quintain_runner.spec.judge_graders import JudgeGrader
from quintain_runner.spec.text_graders import ComparingGrader

_GRADERS: TypeAdapter[list[GraderSpec]] = TypeAdapter(list[GraderSpec])

_MODELS = {("*", *place): model for place, model in GRADER_MODELS.items()}


def with_own_graders(row: Case | InvalidLine, taken: Collection[str]) -> Case | InvalidLine:
    """The case with its own graders validated and named, or what is wrong with them; ``taken`` are the names that the
    evaluation's graders have."""
    if isinstance(row, InvalidLine) or not row.graders:
        return row
    try:
        graders = _GRADERS.validate_python(named_graders(row.graders, taken), context={IS_DATA: True})
    except ValidationError as error:
        return InvalidLine("; ".join(validation_messages(error, _MODELS, within=["graders"])))
    names = [name for grader in graders for name in column_names_of(grader)]
    if twice := sorted({name for name in names if name in taken or names.count(name) > 1}):
        return InvalidLine(f"graders: the name {twice[0]!r} is used twice, here or in the evaluation file; rename one")
    for index, grader in enumerate(graders):
        for one in single_graders([grader]):
            if (problem := _problem_of(one) or _expected_problem(one, row)) is not None:
                return InvalidLine(f"graders[{index}] ({grader.name}): {problem}")
    return row.model_copy(update={"graders": graders})


def _problem_of(grader: GraderSpec) -> str | None:
    """Why a case may not have a grader; None if it may. What a dataset says is run by no program, and is no path."""
    if isinstance(grader, CommandGrader | FunctionGrader | PairwiseGrader):
        return f"write a {grader_kind(grader)} grader in the evaluation file; a case has built-in ones of its answers"
    if grader.reduce is not None:
        return "reduce: it is of a grader that all cases have; write it in the evaluation file"
    paths = {"prompt": getattr(grader, "prompt", None), "schema": getattr(grader, "json_schema", None)}
    named = [key for key, path in paths.items() if isinstance(path, str)] + ["depends_on"] * bool(grader.depends_on)
    return f"{named[0]}: a case names no files; write what it holds" if named else None


def _expected_problem(grader: GraderSpec, case: Case) -> str | None:
    """Why the case's expected is nothing that its grader can compare with; None if it is, or has not to be."""
    if not isinstance(grader, ComparingGrader) or grader.has_value:
        return None
    if case.expected is None:
        return "give it a value, or the case an expected"
    return None if (problem := grader.problem_of(case.expected)) is None else f"expected: {problem}"


@dataclass(frozen=True, slots=True)
class OwnAsking:
    """So many ``graders`` of cases that ask the same targets, ``at_once`` of one case at most, and the ``longest`` of
    them."""

    longest: JudgeGrader | SimilarGrader
    graders: int = 0
    at_once: int = 0


@dataclass(slots=True)
class OwnGraderStats:
    """What the own graders of the cases that were ``counted`` take: of each name the most calls for one answer, the
    kind, the targets that it names (an empty text where it names none) and the number of cases; and the most calls of
    all of one case, and of all cases, for one answer each.
    ``asking`` are those that ask, by their kind and the targets that they name.
    """

    limits: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    cases: Counter[str] = field(default_factory=Counter)
    targets: dict[str, dict[str, None]] = field(default_factory=dict)
    asking: dict[tuple[str, ...], OwnAsking] = field(default_factory=dict)
    counted: int = 0
    most_calls_of_case: int = 0
    calls: int = 0

    def add(self, case: Case) -> None:
        """Count the graders of a case."""
        total, asking = 0, Counter[tuple[str, ...]]()
        for grader in case.graders:
            calls = max_calls_of(grader)
            total += calls
            self.limits[grader.name] = max(calls, self.limits.get(grader.name, 0))
            self.kinds.setdefault(grader.name, grader_kind(grader))
            self.cases[grader.name] += 1
            self.targets.setdefault(grader.name, {}).update(dict.fromkeys(judges_of(grader, "", {})))
            for one in single_graders([grader]):
                if isinstance(one, JudgeGrader | SimilarGrader):
                    key = (one.builtin, *judges_of(one, "", {}))
                    asking[key] += 1
                    known = self.asking.get(key, OwnAsking(one))
                    longest = max(known.longest, one, key=_length)
                    self.asking[key] = OwnAsking(longest, known.graders + 1, max(known.at_once, asking[key]))
        self.counted += 1
        self.calls += total
        self.most_calls_of_case = max(self.most_calls_of_case, total)

    def judges_of(self, target: str, judge_targets: Mapping[str, str | None], name: str | None = None) -> list[str]:
        """The targets that they call for answers of ``target``, or those of this ``name``; ``judge_targets`` are the
        configured ones."""
        named = self.targets.values() if name is None else [self.targets[name]]
        judges = dict.fromkeys(judge for each in named for judge in each)
        return [judge or judge_targets.get(target) or target for judge in judges]


def _length(grader: JudgeGrader | SimilarGrader) -> int:
    return len(grader.model_dump_json(include={"instructions", "rubric", "value"}))
