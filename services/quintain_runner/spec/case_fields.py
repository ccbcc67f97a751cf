"""Reads a field of a case by the name that the dataset gives it. No I/O."""

from __future__ import annotations

from pydantic import JsonValue

from quintain.graders import Case


def case_field(case: Case, name: str) -> JsonValue:
    """The value of a field of a case, or None if it is absent.

    Names are those of the dataset's row; dots lead into nested objects.
    """
    if name in {"id", "question", "system_prompt", "expected"}:
        own: JsonValue = getattr(case, name)
        return own
    if name in case.metadata:
        return case.metadata[name]
    value: JsonValue = {"expected": case.expected, **case.metadata}
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value
