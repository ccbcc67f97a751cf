"""Regular expressions (ECMA 262) with a limit on backtracking, to match untrusted answers of models safely. No I/O."""

from __future__ import annotations

from collections.abc import Callable

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions, ValidationError, ValidationErrorKind, Validator

#: The most backtracking steps of one match before it is aborted.
BACKTRACK_LIMIT = 1_000_000


class BacktrackLimitExceeded(Exception):
    """The match was aborted at `BACKTRACK_LIMIT`; whether the pattern matches is unknown."""


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Compile an ECMA 262 pattern to a function that says whether it matches somewhere in a text.

    Raises `ValueError` if the pattern is not valid. The returned function raises `BacktrackLimitExceeded`.
    """
    schema = {"pattern": f"(?i){pattern}" if ignore_case else pattern}
    try:
        validator = jsonschema_rs.validator_for(schema, pattern_options=_PATTERN_OPTIONS, offline=True)
    except ValidationError:
        raise ValueError(pattern_problem(pattern)) from None
    return lambda text: _matches(text, validator)


def pattern_problem(pattern: str) -> str:
    """The error message of an invalid pattern, with the position after its longest prefix that is a valid pattern."""
    reason = f"{_shorten(pattern)!r} is not a valid regular expression of JSON Schema (ECMA 262)"
    if len(pattern) > _MAX_LOCATED_LENGTH:
        return reason
    position = next((length for length in range(len(pattern) - 1, 0, -1) if _is_pattern(pattern[:length])), 0)
    return f"{reason}: it cannot be read from character {position + 1} on ({_shorten(pattern[position:])!r})"


def _is_pattern(pattern: str) -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=_PATTERN_OPTIONS, offline=True)
    except ValidationError:
        return False
    return True


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}…"


#: The position is not looked for in longer patterns, because every prefix is compiled.
_MAX_LOCATED_LENGTH = 1000

#: How much of a pattern an error message quotes, in characters.
_MAX_SHOWN_LENGTH = 60

_PATTERN_OPTIONS = FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)


def _matches(text: str, validator: Validator) -> bool:
    """Whether the validator's pattern matches somewhere in the text. Raises `BacktrackLimitExceeded`."""
    try:
        validator.validate(text)
    except ValidationError as error:
        if isinstance(error.kind, ValidationErrorKind.Pattern):
            return False
        raise BacktrackLimitExceeded from None
    return True
