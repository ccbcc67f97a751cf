"""One row of ``results.jsonl`` (``protocol.md`` §8): the result of one case, target and repeat. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import AliasChoices, Field, JsonValue, field_serializer

from quintain.contracts.invoke import NO_TOKENS, TokenUsage
from quintain.contracts.message import Message
from quintain_runner.results.verdict import Check, Verdict

#: The error's code where the target answered and a grader gave no verdict.
GRADER_FAILED = "grader_failed"

#: The error's code where a grader gave no verdict and the run's budget is spent.
BUDGET_EXHAUSTED = "budget_exhausted"


class RowStatus(StrEnum):
    """``graded`` and ``inDoubt`` rows are kept when a run resumes; ``error`` rows are asked again."""

    GRADED = "graded"
    ERROR = "error"
    IN_DOUBT = "inDoubt"


class RowKey(NamedTuple):
    """What a row is of; the latest row of a key counts."""

    case_id: str
    target: str
    repeat: int


#: ``pass`` on the wire is a word that Python keeps for itself.
_PASS = AliasChoices("pass", "passed")


def _is_none(value: object) -> bool:
    return value is None


class CheckRow(Message):
    """One thing a grader looked at."""

    id: str | None = Field(default=None, exclude_if=_is_none)
    text: str
    passed: bool = Field(validation_alias=_PASS, serialization_alias="pass")
    score: float | None = Field(default=None, exclude_if=_is_none)
    reason: str | None = Field(default=None, exclude_if=_is_none)
    evidence: str | None = Field(default=None, exclude_if=_is_none)

    @classmethod
    def of(cls, check: Check) -> CheckRow:
        """The check as it is written."""
        return cls(
            id=check.id,
            text=check.text,
            passed=check.passed,
            score=check.score,
            reason=check.reason,
            evidence=check.evidence,
        )


class GraderRow(Message):
    """One grader's word: a verdict, or the error that took its place. ``calls`` is what it spent."""

    score: float | None = None
    passed: bool | None = Field(default=None, validation_alias=_PASS, serialization_alias="pass")
    reason: str | None = None
    checks: list[CheckRow] = Field(default_factory=list)
    details: dict[str, JsonValue] | None = Field(default=None, exclude_if=_is_none)
    error: str | None = Field(default=None, exclude_if=_is_none)
    calls: int = 0

    @classmethod
    def of(cls, verdict: Verdict, *, calls: int = 0) -> GraderRow:
        """The verdict as it is written."""
        return cls(
            score=verdict.score,
            passed=verdict.passed,
            reason=verdict.reason,
            checks=[CheckRow.of(check) for check in verdict.checks],
            details=verdict.details,
            calls=calls,
        )


class RowError(Message):
    """Why a row has no score: a fault's code, or `GRADER_FAILED`, and a sentence."""

    code: str
    error: str


class Row(Message):
    """One row. ``durationMs`` is the target's, in its provider. ``tries`` is absent where it is 1."""

    schema_version: Literal[1] = 1
    case_id: str
    target: str
    repeat: int
    status: RowStatus
    output: str | None = None
    score: float | None = None
    graders: dict[str, GraderRow] = Field(default_factory=dict)
    error: RowError | None = Field(default=None, exclude_if=_is_none)
    calls: int = 0
    token_usage: TokenUsage = NO_TOKENS
    duration_ms: float = 0
    tries: int = Field(default=1, exclude_if=lambda tries: tries == 1)

    @field_serializer("token_usage")
    def _serialize_token_usage(self, usage: TokenUsage) -> dict[str, int]:
        return {kind: count for kind, count in usage if count is not None}

    def to_line(self) -> bytes:
        """The row as the file has it: JSON, its end of line too. What is absent is null, but where a field says so."""
        return self.__pydantic_serializer__.to_json(self, by_alias=True) + b"\n"

    @property
    def key(self) -> RowKey:
        """What this row is of."""
        return RowKey(self.case_id, self.target, self.repeat)

    @property
    def passed(self) -> bool:
        """Whether every grader passes it."""
        return self.status is RowStatus.GRADED and all(grader.passed for grader in self.graders.values())


@dataclass(frozen=True, slots=True)
class RowStats:
    """What a row adds to the counts; all that is kept of it in memory. ``answered``: the target did answer."""

    status: RowStatus
    score: float
    passed: bool
    calls: int
    input_tokens: int
    output_tokens: int
    tries: int
    answered: bool

    @classmethod
    def of(cls, row: Row) -> RowStats:
        """The mark of a row."""
        return cls(
            status=row.status,
            score=row.score or 0.0,
            passed=row.passed,
            calls=row.calls,
            input_tokens=row.token_usage.input,
            output_tokens=row.token_usage.output,
            tries=row.tries,
            answered=row.output is not None,
        )
