"""The built-in graders that make no calls: what compares texts, numbers and JSON; all of them by their options."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions, ValidationError, ValidationErrorKind, Validator
from pydantic import JsonValue

from quintain.config.prices import Price
from quintain.contracts.invoke import NO_TOKENS, Result
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.files import InvalidJson, extract_fenced_json, read_json, read_text_file
from quintain_runner.graders.activity import check_cost, check_latency, check_tokens, check_tool_calls
from quintain_runner.graders.base import GradingContext, GradingResult
from quintain_runner.graders.verdict import GraderError
from quintain_runner.plan.cases import expected_text
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import Check, GraderRow
from quintain_runner.spec.activity_graders import CostGrader, LatencyGrader, TokensGrader, ToolCallsGrader
from quintain_runner.spec.graders import (
    BuiltinGrader,
    ContainsGrader,
    ExactGrader,
    JsonSchemaGrader,
    NumericGrader,
    RegexGrader,
)
from quintain_runner.untrusted import BACKTRACK_LIMIT, BacktrackLimitExceeded, compile_pattern, pattern_problem

#: A number as people and models write it: 1,234.5 or .5 or -2e3. Digits next to letters or further points (versions,
#: 42nd) are not numbers.
_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?!\w|\.\d)", re.ASCII
)


def numbers_in(text: str) -> Iterator[float]:
    """Iterate over the finite numbers in a text, in their order."""
    for match in _NUMBER.finditer(text):
        number = parse_number(match[0])
        if number is not None:
            yield number


def parse_number(text: str) -> float | None:
    """The finite number that a whole text represents, with or without commas between thousands; else None."""
    try:
        number = float(text.strip().replace(",", "").replace("\u2212", "-").replace("_", " "))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def build_validator(schema: str | Mapping[str, JsonValue], folder: Path) -> Validator:
    """Compile a JSON schema, given as a map or as the path of a file relative to ``folder``.

    Raises `ConfigError` if the file cannot be read or the schema is invalid.
    """
    where = "schema"
    content: object = schema
    if isinstance(schema, str):
        where = f"schema {schema}"
        try:
            content = read_json(read_text_file(folder, schema))
        except InvalidJson as json_error:
            raise ConfigError(f"{where}: it is not JSON: {json_error}") from None
    if not isinstance(content, Mapping | bool):
        raise ConfigError(f"{where}: a JSON schema is an object, such as {{type: object}}")
    pattern_options = FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
    try:
        return jsonschema_rs.validator_for(
            content if isinstance(content, bool) else dict(content),
            mask="it",
            pattern_options=pattern_options,
            offline=True,
        )
    except ValidationError as error:
        place = ".".join(str(part) for part in error.instance_path)
        reason = error.message
        if isinstance(error.kind, ValidationErrorKind.Format) and error.kind.format == "regex":
            reason = pattern_problem(str(error.instance))
        raise ConfigError(f"{where}: it is not a JSON schema: {f'{place}: ' if place else ''}{reason}") from None


#: Compares an answer's text with the case. Raises `GraderError` if the case has no usable expected answer.
CompareText = Callable[[Case, str], GraderRow]

#: Compares an answer with the case; its target has this price, if it is known. Raises `GraderError` as `CompareText`.
Compare = Callable[[Case, Result, Price | None], GraderRow]

#: The most schema violations that a verdict lists.
_MAX_SHOWN_VIOLATIONS = 5


@dataclass(frozen=True, slots=True)
class BuiltinGraderRunner:
    """A built-in grader that is ready to grade answers."""

    name: str
    compare: Compare

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
    match spec:
        case ToolCallsGrader():
            return lambda case, result, _: check_tool_calls(spec, case, result)
        case LatencyGrader():
            return lambda _, result, __: check_latency(spec, result)
        case CostGrader():
            return lambda _, result, price: check_cost(spec, result, price)
        case TokensGrader():
            return lambda _, result, __: check_tokens(spec, result)
        case _:
            compare_text = _text_comparison(spec, folder)
            return lambda case, result, _: compare_text(case, result.raw_text)


def _text_comparison(
    spec: ExactGrader | ContainsGrader | RegexGrader | NumericGrader | JsonSchemaGrader, folder: Path
) -> CompareText:
    match spec:
        case ExactGrader():
            return _compare_texts(spec.ignore_case, "exact", lambda answer, expected: answer == expected)
        case ContainsGrader():
            return _compare_texts(spec.ignore_case, "contains", lambda answer, expected: expected in answer)
        case RegexGrader():
            return _compare_pattern(spec)
        case NumericGrader():
            return lambda case, answer: _compare_number(spec, case, answer)
        case JsonSchemaGrader():
            validator = build_validator(spec.json_schema, folder)
            return lambda _, answer: _validate_json(validator, answer, fenced=spec.fenced)


def _compare_texts(ignore_case: bool, name: str, matches: Callable[[str, str], bool]) -> CompareText:  # noqa: FBT001 -- an option
    """The comparison of texts by ``matches``, without surrounding white space and optionally ignoring case."""

    def compare(case: Case, answer: str) -> GraderRow:
        expected = _require_expected_text(case, name).strip()
        answer = answer.strip()
        if ignore_case:
            answer, expected = answer.casefold(), expected.casefold()
        return _verdict(matches(answer, expected))

    return compare


def _compare_pattern(spec: RegexGrader) -> CompareText:
    """The comparison of the regex grader."""
    matches = compile_pattern(spec.pattern, ignore_case=spec.ignore_case)

    def compare(_: Case, answer: str) -> GraderRow:
        try:
            return _verdict(matches(answer))
        except BacktrackLimitExceeded:
            raise GraderError(
                "Its pattern needs too much backtracking on this answer; write it without nested repeats"
            ) from None

    return compare


def _compare_number(spec: NumericGrader, case: Case, answer: str) -> GraderRow:
    """The comparison of the numeric grader."""
    text = _require_expected_text(case, "numeric")
    expected = parse_number(text)
    if expected is None:
        raise GraderError(f"The row's expected is not a number ({text[:40]!r}); the numeric grader needs one")
    numbers = list(numbers_in(answer))
    if not numbers:
        return _verdict(passed=False, reason="there is no number in the answer")
    if spec.take == "only" and len(numbers) > 1:
        return _verdict(passed=False, reason=f"there are {len(numbers)} numbers in the answer")
    number = numbers[0] if spec.take == "first" else numbers[-1]
    tolerance = max(spec.tolerance, spec.relative_tolerance * abs(expected))
    difference = abs(number - expected)
    return _verdict(
        difference <= tolerance, reason=f"{number:.15g} is {difference:.6g} off {expected:.15g}" if difference else None
    )


def _validate_json(validator: Validator, answer: str, *, fenced: bool) -> GraderRow:
    """The comparison of the json-schema grader."""
    try:
        value = read_json(extract_fenced_json(answer) if fenced else answer)
    except InvalidJson as json_error:
        return _verdict(passed=False, reason=f"the answer is not JSON: {json_error}")
    violations = [
        violation for violation, _ in zip(validator.iter_errors(value), range(_MAX_SHOWN_VIOLATIONS), strict=False)
    ]
    checks = [Check(text=_violation_text(violation), passed=False) for violation in violations]
    return GraderRow(
        score=float(not checks), passed=not checks, reason=checks[0].text if checks else None, checks=checks
    )


def _violation_text(violation: ValidationError) -> str:
    """A schema violation as a sentence with its place in the answer."""
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in violation.instance_path)
    return f"{where.removeprefix('.') or 'the answer'}: {violation.message}"


def _require_expected_text(case: Case, name: str) -> str:
    """The expected answer of a case as text. Raises `GraderError` if it has none."""
    expected = expected_text(case)
    if expected is None:
        raise GraderError(f"The row has no expected, which the {name} grader needs; add the field to the dataset")
    return expected


def _verdict(passed: bool, reason: str | None = None) -> GraderRow:  # noqa: FBT001 -- the verdict itself
    """A verdict with a score of 1 or 0."""
    return GraderRow(score=float(passed), passed=passed, reason=reason)
