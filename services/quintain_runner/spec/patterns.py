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
        raise ValueError("it is not a valid regular expression of JSON Schema (ECMA 262)") from None
    return lambda text: _matches(text, validator)


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
