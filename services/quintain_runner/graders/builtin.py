"""The built-in graders that make no calls: what compares texts, numbers and JSON; all of them by their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from quintain.config.prices import Price
from quintain.contracts.invoke import NO_TOKENS, Result
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain.runtime.lazy_module import LazyModule
from quintain_runner.files import (
    InvalidJson,
    extract_fenced_json,
    json_values_in,
    read_exact_json,
    read_json,
    read_text_file,
)
from quintain_runner.graders.activity import check_cost, check_latency, check_tokens, check_tool_calls
from quintain_runner.graders.base import GradingContext, GradingResult
from quintain_runner.graders.verdict import GraderError
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import Check, ChoiceRow, GraderRow
from quintain_runner.spec.builtin_graders import (
    ChoiceGrader,
    ComparingGrader,
    ComparingTextGrader,
    ContainsJsonGrader,
    CostGrader,
    EditDistanceGrader,
    ExactGrader,
    JsonSchemaGrader,
    LatencyGrader,
    NumericGrader,
    RegexGrader,
    TokensGrader,
    ToolCallsGrader,
)
from quintain_runner.spec.choices import LETTERS, read_choice
from quintain_runner.spec.graders import BuiltinGrader
from quintain_runner.spec.right_answers import (
    EXACT,
    answer_text,
    numbers_in,
    right_answers,
    same_json,
    unreadable_number,
)
from quintain_runner.untrusted import (
    BacktrackLimitExceeded,
    compile_pattern,
    pattern_options,
    pattern_problem,
    plain_line,
)

if TYPE_CHECKING:
    import jsonschema_rs
    from rapidfuzz.distance import Levenshtein
else:
    jsonschema_rs, Levenshtein = LazyModule("jsonschema_rs"), LazyModule("rapidfuzz.distance.Levenshtein")


def build_validator(schema: str | Mapping[str, JsonValue], folder: Path) -> jsonschema_rs.Validator:
    """Compile a JSON schema, given as a map or as the path of a file relative to ``folder``.

    Raises `ConfigError` if the file cannot be read or the schema is invalid.
    """
    where = "schema"
    content: object = schema
    if isinstance(schema, str):
        where = f"schema {schema}"
        try:
            content = read_exact_json(read_text_file(folder, schema))
        except InvalidJson as json_error:
            raise ConfigError(f"{where}: it is not JSON: {json_error}") from None
    if not isinstance(content, Mapping | bool):
        raise ConfigError(f"{where}: a JSON schema is an object, such as {{type: object}}")
    try:
        return jsonschema_rs.validator_for(
            content if isinstance(content, bool) else dict(content),
            mask="it",
            pattern_options=pattern_options(),
            offline=True,
        )
    except jsonschema_rs.ValidationError as error:
        place = ".".join(str(part) for part in error.instance_path)
        reason = error.message
        if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Format) and error.kind.format == "regex":
            reason = pattern_problem(str(error.instance))
        raise ConfigError(f"{where}: it is not a JSON schema: {f'{place}: ' if place else ''}{reason}") from None


#: Compares an answer's text with the case. Raises `GraderError` if the case has no usable expected answer.
CompareText = Callable[[Case, str], GraderRow]

#: Compares an answer with the case; its target has this price, if it is known. Raises `GraderError` as `CompareText`.
Compare = Callable[[Case, Result, Price | None], GraderRow]

#: The most schema violations that a verdict lists, and the most digits of a number that its reason shows.
_MAX_SHOWN_VIOLATIONS = 5
_MAX_SHOWN_DIGITS = 40

#: The largest product of the lengths of two texts whose edit distance is counted, in about a second.
_MAX_COMPARED_CHARACTERS = 10**10


@dataclass(frozen=True, slots=True)
class BuiltinGraderRunner:
    """A built-in grader that is ready to grade answers."""

    spec: BuiltinGrader
    compare: Compare

    @property
    def name(self) -> str:
        """The name of the grader in the results."""
        return self.spec.name

    def planned_calls(self, trial: Trial, context: GradingContext, expected_calls: int) -> tuple[()]:
        """Implements `GraderRunner.planned_calls`: it makes none."""
        return ()

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Compare an answer with the case; see `GraderRunner.grade`."""
        try:
            row = self.compare(trial.case, result, context.prices.get(trial.target))
        except GraderError as error:
            row = GraderRow(error=error.message)
        return GradingResult(row, NO_TOKENS)


def build_comparison(spec: BuiltinGrader, folder: Path) -> Compare:
    """The comparison function of a built-in grader; paths of schema files are relative to ``folder``.

    Raises `ConfigError` if the schema cannot be used.
    """
    compare_text: CompareText
    match spec:
        case ToolCallsGrader():
            return lambda case, result, _: check_tool_calls(spec, case, result)
        case LatencyGrader():
            return lambda _, result, __: check_latency(spec, result)
        case CostGrader():
            return lambda _, result, price: check_cost(spec, result, price)
        case TokensGrader():
            return lambda _, result, __: check_tokens(spec, result)
        case RegexGrader():
            compare_text = _compare_patterns(spec)
        case ChoiceGrader():
            compare_text = _compare_choice
        case JsonSchemaGrader():
            validator = build_validator(spec.json_schema, folder)
            compare_text = lambda _, answer: _validate_json(validator, answer, fenced=spec.fenced)  # noqa: E731
        case ContainsJsonGrader():
            schema = None if spec.json_schema is None else build_validator(spec.json_schema, folder)
            compare_text = lambda _, answer: _find_json(schema, answer)  # noqa: E731
        case _:
            compare_text = partial(_compare, spec)
    return lambda case, result, _: compare_text(case, result.raw_text)


#: Whether an answer has the text that a grader looks for.
_HAS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "contains": str.__contains__,
    "starts-with": str.startswith,
    "ends-with": str.endswith,
}


def _compare(spec: ComparingTextGrader, case: Case, answer: str) -> GraderRow:
    """Compare an answer with the right ones; what was right is said where it fails, and is not the case's expected."""
    right = _right(spec, case)
    match spec:
        case NumericGrader():
            row = _compare_number(spec, right, answer)
        case EditDistanceGrader():
            row = _compare_distance(spec, right, answer)
        case ExactGrader():
            row = _verdict(any(_is_exactly(spec, answer, one) for one in right))
        case _:
            cased = _cased(answer, ignore_case=spec.ignore_case)
            texts = (_cased(answer_text(one), ignore_case=spec.ignore_case) for one in right)
            row = _verdict(any(_HAS[spec.builtin](cased, text) for text in texts))
    if row.passed or row.reason is not None or not spec.has_value:
        return row
    return row.with_fields(reason=plain_line("right is " + " or ".join(map(answer_text, spec.answers(case)))))


def _right(spec: ComparingGrader, case: Case) -> list[JsonValue]:
    """The right answers to a case. Raises `GraderError` if there is none, or one that cannot be compared with."""
    if not spec.has_value and case.expected is None:
        raise GraderError(f"The row has no expected, which {spec.name} needs; add the field to the dataset")
    answers = spec.answers(case)
    if (problem := spec.problem_of(answers)) is not None:
        raise GraderError(f"The row's {'value' if spec.has_value else 'expected'} is not {spec.takes}: {problem}")
    return answers


def _cased(text: str, *, ignore_case: bool) -> str:
    return text.casefold() if ignore_case else text


def _is_exactly(spec: ExactGrader, answer: str, right: JsonValue) -> bool:
    """Whether the answer is a right one: the same text, or of an object or a list the same JSON."""
    if isinstance(right, dict | list):
        try:
            return same_json(read_json(answer), right)
        except InvalidJson:
            return False
    texts = (_cased(text, ignore_case=spec.ignore_case) for text in (answer, answer_text(right)))
    first, second = (text.strip() if spec.strip else text for text in texts)
    return first == second


def _compare_patterns(spec: RegexGrader) -> CompareText:
    """The comparison of the regex grader."""
    patterns = [compile_pattern(pattern, ignore_case=spec.ignore_case) for pattern in spec.patterns]

    def compare(_: Case, answer: str) -> GraderRow:
        try:
            return _verdict(any(matches(answer) for matches in patterns))
        except BacktrackLimitExceeded:
            raise GraderError(
                "Its pattern needs too much backtracking on this answer; write it without nested repeats"
            ) from None

    return compare


def _compare_number(spec: NumericGrader, right: Sequence[JsonValue], answer: str) -> GraderRow:
    """The comparison of the numeric grader: exact, whatever the size of the numbers."""
    numbers = list(numbers_in(answer, spec.decimal))
    if not numbers:
        return _verdict(passed=False, reason="there is no number in the answer")
    if spec.take == "only" and len(numbers) > 1:
        return _verdict(passed=False, reason=f"there are {len(numbers)} numbers in the answer")
    read = numbers[0] if spec.take == "first" else numbers[-1]
    if (number := read.value) is None:
        return _verdict(passed=False, reason=unreadable_number(read.text, spec.decimal))
    wanted = [one for one in map(spec.number_of, right) if one is not None]
    off = [EXACT.abs(EXACT.subtract(number, one)) for one in wanted]
    absolute, relative = Decimal(repr(spec.tolerance)), Decimal(repr(spec.relative_tolerance))
    passed = any(
        distance <= max(absolute, EXACT.multiply(relative, EXACT.abs(one)))
        for distance, one in zip(off, wanted, strict=True)
    )
    distance, nearest = min(zip(off, wanted, strict=True))
    shown = [
        one if len(one) <= _MAX_SHOWN_DIGITS else f"{one[:_MAX_SHOWN_DIGITS]}…" for one in (read.text, str(nearest))
    ]
    return _verdict(passed, reason=f"{shown[0]} is {distance:.6g} off {shown[1]}" if distance else None)


def _compare_choice(case: Case, answer: str) -> GraderRow:
    """The comparison of the choice grader; what cannot be read fails, and is named."""
    choices = case.choices or []
    right = [position for position, choice in enumerate(choices) if choice in right_answers(case.expected)]
    if not right:
        raise GraderError("The row has no choices, or no expected that is one of them")
    read = read_choice(answer, choices)
    reason = (
        f"no choice can be read in the answer: {read.problem}"
        if read.position is None
        else f"{LETTERS[read.position]} is chosen; right is {' or '.join(LETTERS[position] for position in right)}"
    )
    passed = read.position in right
    verdict = _verdict(passed, reason=None if passed else reason)
    return verdict.with_fields(choice=ChoiceRow(position=read.position, right=right, of=len(choices)))


def _compare_distance(spec: EditDistanceGrader, right: Sequence[JsonValue], answer: str) -> GraderRow:
    """The comparison of the edit-distance grader: with the nearest of the right answers."""
    cased = _cased(answer, ignore_case=spec.ignore_case)
    texts = [_cased(answer_text(one), ignore_case=spec.ignore_case) for one in right]
    if len(cased) * max(map(len, texts)) > _MAX_COMPARED_CHARACTERS:
        raise GraderError(f"The answer has {len(cased):,} characters, too many to count an edit distance")
    distances = [Levenshtein.distance(cased, text) for text in texts]
    similarities = [
        1 - distance / max(len(cased), len(text), 1) for distance, text in zip(distances, texts, strict=True)
    ]
    distance, similarity = min(distances), max(similarities)
    passed = distance <= spec.max if spec.max is not None else similarity >= (spec.threshold or 0)
    reason = None if not distance else f"{distance} characters are to be inserted, deleted or replaced"
    return GraderRow(score=similarity, passed=passed, reason=reason)


def _find_json(schema: jsonschema_rs.Validator | None, answer: str) -> GraderRow:
    """The comparison of the contains-json grader."""
    try:
        found = [value for value in json_values_in(answer) if schema is not None or isinstance(value, dict)]
    except InvalidJson as error:
        raise GraderError(f"JSON cannot be looked for in the answer: {error}") from None
    if not found:
        return _verdict(passed=False, reason="there is no JSON in the answer")
    if schema is None or any(map(schema.is_valid, found)):
        return _verdict(passed=True)
    return _validated(schema, found[-1])


def _validate_json(validator: jsonschema_rs.Validator, answer: str, *, fenced: bool) -> GraderRow:
    """The comparison of the json-schema grader."""
    try:
        value = read_json(extract_fenced_json(answer) if fenced else answer)
    except InvalidJson as json_error:
        return _verdict(passed=False, reason=f"the answer is not JSON: {json_error}")
    return _validated(validator, value)


def _validated(validator: jsonschema_rs.Validator, value: JsonValue) -> GraderRow:
    """Whether a schema allows a value; each violation is a check."""
    violations = [
        violation for violation, _ in zip(validator.iter_errors(value), range(_MAX_SHOWN_VIOLATIONS), strict=False)
    ]
    checks = [Check(text=_violation_text(violation), passed=False) for violation in violations]
    return GraderRow(
        score=float(not checks), passed=not checks, reason=checks[0].text if checks else None, checks=checks
    )


def _violation_text(violation: jsonschema_rs.ValidationError) -> str:
    """A schema violation as a sentence with its place in the answer."""
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in violation.instance_path)
    return f"{where.removeprefix('.') or 'the answer'}: {violation.message}"


def _verdict(passed: bool, reason: str | None = None) -> GraderRow:  # noqa: FBT001 -- the verdict itself
    """A verdict with a score of 1 or 0."""
    return GraderRow(score=float(passed), passed=passed, reason=reason)
