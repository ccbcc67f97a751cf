"""What a grader printed, as a verdict: AgentV's three shapes, told apart by their fields. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue, TypeAdapter

from quintain.errors import QuintainError

#: A score from here on passes, where the grader itself does not say.
PASS_SCORE = 0.5

#: The smallest useful thing to print, for a grader's author.
EXAMPLE = '{"score": 1.0, "reason": "the answer is right"}'

#: How much of a grader's own error is told, in characters.
_ERROR_TOLD = 300

#: Where a shape keeps its checks, and under which key a check says that it passed.
_CHECK_LISTS = (("checks", "pass"), ("assertions", "passed"))

#: The first shape's two lists of plain text, and what each says.
_TEXT_LISTS = (("hits", True), ("misses", False))


_DETAILS = TypeAdapter(dict[str, JsonValue])


class GraderError(QuintainError):
    """The grader gave no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing a grader looked at."""

    text: str
    passed: bool
    id: str | None = None
    score: float | None = None
    reason: str | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A grader's word on one case. ``score`` is from 0 to 1."""

    score: float
    passed: bool
    reason: str | None = None
    checks: tuple[Check, ...] = ()
    details: dict[str, JsonValue] | None = None


def read_verdict(stdout: bytes) -> Verdict:
    """The verdict in what a grader printed. Raises `GraderError` with a sentence for the grader's author."""
    return verdict_of(_object(stdout))


def verdict_of(said: Mapping[str, object]) -> Verdict:
    """The verdict in what a grader said, in any of the three shapes.

    Raises `GraderError`; what a grader that looks at many cases says of one it cannot grade, ``{"error": …}``, too.
    """
    refused = _text(said.get("error"))
    if refused is not None:
        raise GraderError(f"It said: {refused[:_ERROR_TOLD]}")
    checks = tuple(_checks(said))
    score, passed = _score(said.get("score"), "score"), said.get("pass")
    if passed is not None and not isinstance(passed, bool):
        raise GraderError("It printed a pass that is neither true nor false")
    if score is None:
        score = _derived(checks, passed=passed)
    return Verdict(
        score=score,
        passed=score >= PASS_SCORE if passed is None else passed,
        reason=_text(said.get("reason")) or _text(said.get("reasoning")),
        checks=checks,
        details=_details(said.get("details")),
    )


def _object(stdout: bytes) -> dict[str, object]:
    try:
        text = stdout.decode("utf-8-sig").strip()
        said = json.loads(text)
    except (ValueError, RecursionError):
        seen = stdout[:100].decode(errors="replace").strip()
        what = f"its output begins with {seen!r}" if seen else "its output is empty"
        raise GraderError(
            f"It printed no JSON ({what}); print one object and nothing else, such as {EXAMPLE}"
        ) from None
    if not isinstance(said, dict):
        raise GraderError(f"It printed JSON, but not an object; print one such as {EXAMPLE}")
    return said


def _derived(checks: tuple[Check, ...], *, passed: bool | None) -> float:
    if checks:
        marks = [float(check.passed) if check.score is None else check.score for check in checks]
        return sum(marks) / len(marks)
    if passed is not None:
        return float(passed)
    raise GraderError(f"Its JSON has none of score, pass, checks, assertions, hits and misses; print {EXAMPLE}")


def _checks(said: Mapping[str, object]) -> Iterator[Check]:
    for name, pass_key in _CHECK_LISTS:
        for number, item in enumerate(_items(said.get(name))):
            # AgentV leaves out what is no check; so do we.
            if isinstance(item, dict) and isinstance(item.get("text"), str):
                yield Check(
                    id=_text(item.get("id")),
                    text=_mended(item["text"]),
                    passed=item.get(pass_key) is True,
                    score=_score(item.get("score"), f"{name}[{number}].score"),
                    reason=_text(item.get("reason")),
                    evidence=_text(item.get("evidence")),
                )
    for name, passed in _TEXT_LISTS:
        for item in _items(said.get(name)):
            if isinstance(item, str):
                yield Check(text=_mended(item), passed=passed)


def _details(value: object) -> dict[str, JsonValue] | None:
    if not isinstance(value, dict) or not value:
        return None
    try:
        # Once more through JSON, so that no half of a surrogate pair and no NaN gets further.
        return _DETAILS.validate_json(_mended(json.dumps(value, ensure_ascii=False, allow_nan=False)))
    except (ValueError, RecursionError):
        raise GraderError("Its details are no JSON that can be kept: NaN, or nested too deeply") from None


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _score(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraderError(f"Its {where} is not a number; print one from 0 to 1")
    # NaN is in no range, so this refuses it too; the range is looked at before an integer of any size is converted.
    if not 0 <= value <= 1:
        raise GraderError(f"Its {where} is not from 0 to 1; scale it, or print pass alone")
    return float(value)


def _text(value: object) -> str | None:
    return _mended(value) if isinstance(value, str) else None


def _mended(text: str) -> str:
    # JSON can carry half a surrogate pair, which no file in UTF-8 can.
    return text.encode(errors="replace").decode()
