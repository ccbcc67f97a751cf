"""Parses the JSON that a grader returned, in any of AgentV's three formats, into a verdict. No I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping

from pydantic import ConfigDict, JsonValue, TypeAdapter

from quintain.contracts.credentials import mask_secrets
from quintain.contracts.invoke import Result
from quintain.errors import QuintainError
from quintain_runner.files import InvalidJson, unique_keys
from quintain_runner.results.answer import is_cut
from quintain_runner.results.row import Check, GraderRow

#: The lowest score that passes, if the grader does not return ``pass``.
PASS_SCORE = 0.5

#: A minimal valid output, for error messages.
EXAMPLE_OUTPUT = '{"score": 1.0, "reason": "the answer is right"}'

_CHECK_KEYS = '{"text": …, "pass" or "passed": true or false}, and optionally id, score, reason and evidence'

#: The most characters of a grader's own error message that are shown.
_MAX_ERROR_CHARACTERS = 300

#: The fields that hold a list of checks, and those with which a check, or the verdict itself, says that it passed.
_CHECK_LISTS = ("checks", "assertions")
PASS_FIELDS = ("pass", "passed")

#: The fields of AgentV's first format with a list of texts, and whether these checks passed.
_TEXT_LISTS = (("hits", True), ("misses", False))


_DETAILS = TypeAdapter(dict[str, JsonValue], config=ConfigDict(defer_build=True))


class GraderError(QuintainError):
    """A grader returned no verdict; the message says why."""


def cut_note(reply: Result) -> str:
    """The end of an error about a judge's reply: that it was cut, where it was."""
    cut = f"; it was cut at max_tokens: raise max_tokens of {reply.target}"
    return cut if is_cut(reply) else ""


def parse_verdict(stdout: bytes, secrets: Collection[str] = ()) -> GraderRow:
    """The verdict in a grader's stdout.

    Raises `GraderError` with a message for the grader's author, in which the ``secrets`` are masked.
    """
    return verdict_from_fields(_parse_object(stdout, secrets), secrets)


def verdict_from_fields(fields: Mapping[str, object], secrets: Collection[str] = ()) -> GraderRow:
    """The verdict in a grader's JSON object, in any of AgentV's three formats.

    Raises `GraderError`, also if the object has an ``error``, with which a grader reports that it failed on a case.
    """
    error = fields.get("error")
    if error is not None and error is not False:
        text = mask_secrets(_parse_text(error) or json.dumps(error), secrets)
        raise GraderError(f"It reported an error: {text[:_MAX_ERROR_CHARACTERS]}")
    checks = list(_parse_checks(fields))
    score, passed = _parse_score(fields.get("score"), "score"), _parse_pass(fields, "")
    if score is None:
        score = _derive_score(checks, passed=passed)
    return GraderRow(
        score=score,
        passed=score >= PASS_SCORE if passed is None else passed,
        reason=_parse_text(fields.get("reason")) or _parse_text(fields.get("reasoning")),
        checks=checks,
        details=_parse_details(fields.get("details")),
    )


def _parse_object(stdout: bytes, secrets: Collection[str]) -> dict[str, object]:
    """The JSON object in a grader's stdout. Raises `GraderError`."""
    try:
        text = stdout.decode("utf-8-sig").strip()
        value = json.loads(text, object_pairs_hook=unique_keys)
    except InvalidJson as twice:
        raise GraderError(f"Its JSON is ambiguous: {twice}") from None
    except (ValueError, RecursionError):
        beginning = mask_secrets(stdout[:100].decode(errors="replace").strip(), secrets)
        what = f"its output begins with {beginning!r}" if beginning else "its output is empty"
        raise GraderError(
            f"It printed no JSON ({what}); print one object and nothing else, such as {EXAMPLE_OUTPUT}"
        ) from None
    if not isinstance(value, dict):
        raise GraderError(f"It printed JSON, but not an object; print one such as {EXAMPLE_OUTPUT}")
    return value


def _derive_score(checks: list[Check], *, passed: bool | None) -> float:
    """The score of a verdict without one: the mean of its checks, else 1 or 0 by ``pass``. Raises `GraderError`."""
    if checks:
        scores = [float(check.passed) if check.score is None else check.score for check in checks]
        return sum(scores) / len(scores)
    if passed is not None:
        return float(passed)
    raise GraderError(
        f"Its JSON has none of score, pass, passed, checks, assertions, hits and misses; print {EXAMPLE_OUTPUT}"
    )


def _parse_checks(fields: Mapping[str, object]) -> Iterator[Check]:
    """The checks of a verdict in any format."""
    for name in _CHECK_LISTS:
        for place, item in _items(fields, name):
            yield _parse_check(item, place)
    for name, is_hit in _TEXT_LISTS:
        for place, item in _items(fields, name):
            if not isinstance(item, str):
                raise GraderError(f"Its {place} is not a text")
            yield Check(text=without_surrogates(item), passed=is_hit)


def _parse_check(item: object, place: str) -> Check:
    """A check of a list. Raises `GraderError` if it does not say whether it passed."""
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise GraderError(f"Its {place} is not a check; print {_CHECK_KEYS}")
    score, passed = _parse_score(item.get("score"), f"{place}.score"), _parse_pass(item, f"{place}.")
    if passed is None and score is None:
        raise GraderError(f"Its {place} has none of pass, passed and score; print {_CHECK_KEYS}")
    return Check(
        id=_parse_text(item.get("id")),
        text=without_surrogates(item["text"]),
        passed=(score or 0) >= PASS_SCORE if passed is None else passed,
        score=score,
        reason=_parse_text(item.get("reason")),
        evidence=_parse_text(item.get("evidence")),
    )


def _parse_pass(fields: Mapping[str, object], prefix: str) -> bool | None:
    """Whether a verdict or a check passed, by either field; None if it has neither. ``prefix`` is its place.

    Raises `GraderError` if one is neither true nor false, or if they contradict each other.
    """
    said = {name: fields[name] for name in PASS_FIELDS if fields.get(name) is not None}
    for name, value in said.items():
        if not isinstance(value, bool):
            raise GraderError(f"Its {prefix}{name} is neither true nor false")
    if len(set(said.values())) > 1:
        raise GraderError(f"Its {prefix}pass and {prefix}passed contradict each other; print one of them")
    return any(said.values()) if said else None


def _parse_details(value: object) -> dict[str, JsonValue] | None:
    """The ``details`` object, or None if it is absent or empty. Raises `GraderError` if it cannot be stored as JSON."""
    if not isinstance(value, dict) or not value:
        return None
    try:
        # Converted to JSON and back, which removes lone surrogates and rejects NaN.
        return _DETAILS.validate_json(without_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False)))
    except (ValueError, RecursionError):
        raise GraderError("Its details cannot be stored as JSON: they contain NaN, or are nested too deeply") from None


def _items(fields: Mapping[str, object], name: str) -> Iterator[tuple[str, object]]:
    """The items of a field that is a list or absent, each with its place. Raises `GraderError`."""
    value = fields.get(name)
    if value is not None and not isinstance(value, list):
        raise GraderError(f"Its {name} is not a list")
    return ((f"{name}[{number}]", item) for number, item in enumerate(value or []))


def _parse_score(value: object, where: str) -> float | None:
    """A score from 0 to 1, or None. Raises `GraderError` if it is out of range or not a number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraderError(f"Its {where} is not a number; print one from 0 to 1")
    # This also rejects NaN; the range is checked before a very large integer is converted to float.
    if not 0 <= value <= 1:
        raise GraderError(f"Its {where} is not from 0 to 1; scale it, or print pass alone")
    return float(value)


def _parse_text(value: object) -> str | None:
    """The value if it is text, else None."""
    return without_surrogates(value) if isinstance(value, str) else None


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON allows but UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()
