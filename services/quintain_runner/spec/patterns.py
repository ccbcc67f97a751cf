"""Regular expressions (ECMA 262) with a limit on backtracking, for matching answers of models. No I/O."""

from __future__ import annotations

from collections.abc import Callable

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions, ValidationError, ValidationErrorKind, Validator

#: How often a pattern may go back over an answer before it is given up.
BACKTRACK_LIMIT = 1_000_000


class BacktrackLimitExceeded(Exception):
    """The pattern was given up: whether the text holds it, nobody knows."""


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Whether a text holds this pattern of ECMA 262. Raises `ValueError` where it is none.

    What it returns raises `BacktrackLimitExceeded`.
    """
    schema = {"pattern": f"(?i){pattern}" if ignore_case else pattern}
    try:
        validator = jsonschema_rs.validator_for(schema, pattern_options=_PATTERN_OPTIONS, offline=True)
    except ValidationError:
        raise ValueError("it is no regular expression as JSON Schema has them (ECMA 262)") from None
    return lambda text: _matches(text, validator)


_PATTERN_OPTIONS = FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)


def _matches(text: str, validator: Validator) -> bool:
    try:
        validator.validate(text)
    except ValidationError as error:
        if isinstance(error.kind, ValidationErrorKind.Pattern):
            return False
        raise BacktrackLimitExceeded from None
    return True
