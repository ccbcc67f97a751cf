"""The parts of a row: what was asked and answered, and a grader's verdict. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, JsonValue, PlainSerializer

from quintain.contracts.invoke import ChatMessage, OutputMessage, Result, TokenUsage
from quintain.contracts.message import Message
from quintain.graders import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One criterion that a grader checked: its description, whether it passed, and optionally a score, reason and
    evidence.
    """

    text: str
    passed: bool
    id: str | None = None
    score: float | None = None
    reason: str | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A grader's verdict on one answer. ``score`` is from 0 to 1; ``details`` is any JSON object."""

    score: float
    passed: bool
    reason: str | None = None
    checks: tuple[Check, ...] = ()
    details: dict[str, JsonValue] | None = None


def is_none(value: object) -> bool:
    """Whether a value is None: such fields are omitted from the JSON."""
    return value is None


def is_zero(value: object) -> bool:
    """Whether a value is 0 or False: such fields are omitted from the JSON."""
    return value == 0


def is_one(value: object) -> bool:
    """Whether a value is 1: such fields are omitted from the JSON."""
    return value == 1


def _known_counts(usage: TokenUsage) -> dict[str, int]:
    """Token usage as JSON, without counts that are unknown."""
    return {kind: count for kind, count in usage if count is not None}


#: Token usage as a row holds it.
StoredUsage = Annotated[TokenUsage, PlainSerializer(_known_counts)]


class RowCase(Message):
    """What was asked, and what the answer was compared with."""

    question: str | None = Field(default=None, exclude_if=is_none)
    messages: list[ChatMessage] | None = Field(default=None, exclude_if=is_none)
    system_prompt: str | None = Field(default=None, exclude_if=is_none)
    expected: JsonValue = Field(default=None, exclude_if=is_none)

    @classmethod
    def of(cls, case: Case) -> RowCase:
        """The stored form of a case."""
        return cls.unchecked(
            question=case.question, messages=case.messages, system_prompt=case.system_prompt, expected=case.expected
        )


_TEXT_MESSAGE = OutputMessage(content="")


class Answer(Message):
    """What a target answered, beside its text and its duration: with them the answer can be graded again.

    ``messages`` is absent where the answer is one message, and the text is all of it. ``attempts`` is absent where it
    is 1.
    """

    request_id: str | None = Field(default=None, exclude_if=is_none)
    messages: list[OutputMessage] | None = Field(default=None, exclude_if=is_none)
    model: str | None = Field(default=None, exclude_if=is_none)
    finish_reason: str | None = Field(default=None, exclude_if=is_none)
    token_usage: StoredUsage | None = Field(default=None, exclude_if=is_none)
    attempts: int = Field(default=1, exclude_if=is_one)

    @classmethod
    def of(cls, result: Result, request_id: str) -> Answer:
        """The answer of this result."""
        is_text = result.output == [_TEXT_MESSAGE.with_fields(content=result.raw_text)]
        return cls.unchecked(
            request_id=request_id,
            messages=None if is_text else result.output,
            model=result.model,
            finish_reason=result.finish_reason,
            token_usage=result.token_usage,
            attempts=result.attempts,
        )
