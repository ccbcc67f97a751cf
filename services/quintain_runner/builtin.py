"""The graders that are built in and call nobody: each compares an answer by its own options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jsonschema_rs import ValidationError, Validator

from quintain.contracts.invoke import NO_TOKENS, Result
from quintain.graders import Case
from quintain_runner.grader_input import expected_text
from quintain_runner.grader_specs import (
    BuiltinGrader,
    ContainsGrader,
    ExactGrader,
    JsonSchemaGrader,
    NumericGrader,
    RegexGrader,
)
from quintain_runner.grading import Bench, Graded
from quintain_runner.json_text import NoJson, fenced_json, read_json
from quintain_runner.numbers import number_of, numbers_in
from quintain_runner.patterns import TooHard, pattern_of
from quintain_runner.plan import Trial
from quintain_runner.rows import GraderRow
from quintain_runner.schema_file import validator_of
from quintain_runner.verdict import Check, GraderError, Verdict

#: Compares an answer with what a case expects. Raises `GraderError` where there is nothing to compare with.
Compare = Callable[[Case, str], Verdict]

#: How many breaches of a schema a verdict tells.
_BREACHES_TOLD = 5


@dataclass(frozen=True, slots=True)
class Comparing:
    """A grader that is built in, ready to compare."""

    name: str
    compare: Compare

    async def grade(self, trial: Trial, result: Result, bench: Bench) -> Graded:
        """Compare an answer."""
        try:
            row = GraderRow.of(self.compare(trial.case, result.raw_text))
        except GraderError as error:
            row = GraderRow(error=error.message)
        return Graded(row, NO_TOKENS)


def compare_of(spec: BuiltinGrader, folder: Path) -> Compare:
    """How this grader compares; its files stand in ``folder``. Raises `ConfigError` where one cannot be used."""
    match spec:
        case ExactGrader():
            return _texts(spec.ignore_case, "exact", lambda answer, expected: answer == expected)
        case ContainsGrader():
            return _texts(spec.ignore_case, "contains", lambda answer, expected: expected in answer)
        case RegexGrader():
            return _pattern(spec)
        case NumericGrader():
            return lambda case, answer: _numeric(spec, case, answer)
        case JsonSchemaGrader():
            validator = validator_of(spec.json_schema, folder)
            return lambda _, answer: _against(validator, answer, fenced=spec.fenced)


def _texts(ignore_case: bool, name: str, agrees: Callable[[str, str], bool]) -> Compare:  # noqa: FBT001 -- an option
    def compare(case: Case, answer: str) -> Verdict:
        expected = _expected(case, name).strip()
        answer = answer.strip()
        if ignore_case:
            answer, expected = answer.casefold(), expected.casefold()
        return _verdict(agrees(answer, expected))

    return compare


def _pattern(spec: RegexGrader) -> Compare:
    holds = pattern_of(spec.pattern, ignore_case=spec.ignore_case)

    def compare(_: Case, answer: str) -> Verdict:
        try:
            return _verdict(holds(answer))
        except TooHard:
            raise GraderError(
                "Its pattern goes back over this answer too often and was given up; write it without nested repeats"
            ) from None

    return compare


def _numeric(spec: NumericGrader, case: Case, answer: str) -> Verdict:
    text = _expected(case, "numeric")
    expected = number_of(text)
    if expected is None:
        raise GraderError(f"The row's expected is no number ({text[:40]!r}), and numeric compares with it")
    numbers = list(numbers_in(answer))
    if not numbers:
        return _verdict(passed=False, reason="there is no number in the answer")
    if spec.take == "only" and len(numbers) > 1:
        return _verdict(passed=False, reason=f"there are {len(numbers)} numbers in the answer")
    number = numbers[0] if spec.take == "first" else numbers[-1]
    allowed = max(spec.tolerance, spec.relative_tolerance * abs(expected))
    off = abs(number - expected)
    return _verdict(off <= allowed, reason=f"{number:.15g} is {off:.6g} off {expected:.15g}" if off else None)


def _against(validator: Validator, answer: str, *, fenced: bool) -> Verdict:
    try:
        said = read_json(fenced_json(answer) if fenced else answer)
    except NoJson as no_json:
        return _verdict(passed=False, reason=f"the answer is no JSON: {no_json}")
    breaches = [breach for breach, _ in zip(validator.iter_errors(said), range(_BREACHES_TOLD), strict=False)]
    checks = tuple(Check(text=_told(breach), passed=False) for breach in breaches)
    return Verdict(score=float(not checks), passed=not checks, reason=checks[0].text if checks else None, checks=checks)


def _told(breach: ValidationError) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in breach.instance_path)
    return f"{where.removeprefix('.') or 'the answer'}: {breach.message}"


def _expected(case: Case, name: str) -> str:
    expected = expected_text(case)
    if expected is None:
        raise GraderError(f"The row has no expected, and {name} compares with it; add the field to the dataset")
    return expected


def _verdict(passed: bool, reason: str | None = None) -> Verdict:  # noqa: FBT001 -- what it says
    return Verdict(score=float(passed), passed=passed, reason=reason)
