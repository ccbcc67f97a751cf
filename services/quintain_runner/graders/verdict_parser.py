"""Parses the JSON that a grader returned, in any of AgentV's three formats, into a verdict. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pydantic import JsonValue, TypeAdapter

from quintain.errors import QuintainError
from quintain_runner.results.verdict import Check, Verdict

#: A score from here on passes, where the grader itself does not say.
PASS_SCORE = 0.5

#: The smallest useful thing to print, for a grader's author.
EXAMPLE_OUTPUT = '{"score": 1.0, "reason": "the answer is right"}'

#: How much of a grader's own error is told, in characters.
_MAX_ERROR_CHARACTERS = 300

#: Where a shape keeps its checks, and under which key a check says that it passed.
_CHECK_LISTS = (("checks", "pass"), ("assertions", "passed"))

#: The first shape's two lists of plain text, and what each says.
_TEXT_LISTS = (("hits", True), ("misses", False))


_DETAILS = TypeAdapter(dict[str, JsonValue])


class GraderError(QuintainError):
    """The grader gave no verdict."""


def parse_verdict(stdout: bytes) -> Verdict:
    """The verdict in what a grader printed. Raises `GraderError` with a sentence for the grader's author."""
    return verdict_from_fields(_parse_object(stdout))


def verdict_from_fields(fields: Mapping[str, object]) -> Verdict:
    """The verdict in what a grader said, in any of the three shapes.

    Raises `GraderError`; what a grader that looks at many cases says of one it cannot grade, ``{"error": …}``, too.
    """
    error = _parse_text(fields.get("error"))
    if error is not None:
        raise GraderError(f"It said: {error[:_MAX_ERROR_CHARACTERS]}")
    checks = tuple(_parse_checks(fields))
    score, passed = _parse_score(fields.get("score"), "score"), fields.get("pass")
    if passed is not None and not isinstance(passed, bool):
        raise GraderError("It printed a pass that is neither true nor false")
    if score is None:
        score = _derive_score(checks, passed=passed)
    return Verdict(
        score=score,
        passed=score >= PASS_SCORE if passed is None else passed,
        reason=_parse_text(fields.get("reason")) or _parse_text(fields.get("reasoning")),
        checks=checks,
        details=_parse_details(fields.get("details")),
    )


def _parse_object(stdout: bytes) -> dict[str, object]:
    try:
        text = stdout.decode("utf-8-sig").strip()
        value = json.loads(text)
    except (ValueError, RecursionError):
        beginning = stdout[:100].decode(errors="replace").strip()
        what = f"its output begins with {beginning!r}" if beginning else "its output is empty"
        raise GraderError(
            f"It printed no JSON ({what}); print one object and nothing else, such as {EXAMPLE_OUTPUT}"
        ) from None
    if not isinstance(value, dict):
        raise GraderError(f"It printed JSON, but not an object; print one such as {EXAMPLE_OUTPUT}")
    return value


def _derive_score(checks: tuple[Check, ...], *, passed: bool | None) -> float:
    if checks:
        scores = [float(check.passed) if check.score is None else check.score for check in checks]
        return sum(scores) / len(scores)
    if passed is not None:
        return float(passed)
    raise GraderError(f"Its JSON has none of score, pass, checks, assertions, hits and misses; print {EXAMPLE_OUTPUT}")


def _parse_checks(fields: Mapping[str, object]) -> Iterator[Check]:
    for name, pass_key in _CHECK_LISTS:
        for number, item in enumerate(_as_list(fields.get(name))):
            # AgentV leaves out what is no check; so do we.
            if isinstance(item, dict) and isinstance(item.get("text"), str):
                yield Check(
                    id=_parse_text(item.get("id")),
                    text=_replace_lone_surrogates(item["text"]),
                    passed=item.get(pass_key) is True,
                    score=_parse_score(item.get("score"), f"{name}[{number}].score"),
                    reason=_parse_text(item.get("reason")),
                    evidence=_parse_text(item.get("evidence")),
                )
    for name, passed in _TEXT_LISTS:
        for item in _as_list(fields.get(name)):
            if isinstance(item, str):
                yield Check(text=_replace_lone_surrogates(item), passed=passed)


def _parse_details(value: object) -> dict[str, JsonValue] | None:
    if not isinstance(value, dict) or not value:
        return None
    try:
        # Once more through JSON, so that no half of a surrogate pair and no NaN gets further.
        return _DETAILS.validate_json(_replace_lone_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False)))
    except (ValueError, RecursionError):
        raise GraderError("Its details are no JSON that can be kept: NaN, or nested too deeply") from None


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _parse_score(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraderError(f"Its {where} is not a number; print one from 0 to 1")
    # NaN is in no range, so this refuses it too; the range is looked at before an integer of any size is converted.
    if not 0 <= value <= 1:
        raise GraderError(f"Its {where} is not from 0 to 1; scale it, or print pass alone")
    return float(value)


def _parse_text(value: object) -> str | None:
    return _replace_lone_surrogates(value) if isinstance(value, str) else None


def _replace_lone_surrogates(text: str) -> str:
    # JSON can carry half a surrogate pair, which no file in UTF-8 can.
    return text.encode(errors="replace").decode()
