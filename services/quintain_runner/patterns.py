"""Regular expressions on what models wrote: bounded, so that no answer can make one run for ever. Pure."""

from __future__ import annotations

from collections.abc import Callable

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions, ValidationError, ValidationErrorKind, Validator

#: How often a pattern may go back over an answer before it is given up.
MOST_BACKTRACKS = 1_000_000


class TooHard(Exception):
    """The pattern was given up: whether the text holds it, nobody knows."""


def pattern_of(pattern: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Whether a text holds this pattern of ECMA 262. Raises `ValueError` where it is none.

    What it returns raises `TooHard`.
    """
    schema = {"pattern": f"(?i){pattern}" if ignore_case else pattern}
    try:
        validator = jsonschema_rs.validator_for(schema, pattern_options=_BOUNDED, offline=True)
    except ValidationError:
        raise ValueError("it is no regular expression as JSON Schema has them (ECMA 262)") from None
    return lambda text: _is_in(text, validator)


_BOUNDED = FancyRegexOptions(backtrack_limit=MOST_BACKTRACKS)


def _is_in(text: str, validator: Validator) -> bool:
    try:
        validator.validate(text)
    except ValidationError as error:
        if isinstance(error.kind, ValidationErrorKind.Pattern):
            return False
        raise TooHard from None
    return True
