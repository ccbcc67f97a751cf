"""Fingerprints of a case: of what a target is asked, and of what graders compare the answer with. No I/O."""

from __future__ import annotations

from quintain.config.fingerprint import fingerprint_of
from quintain.graders import Case


def input_fingerprint(case: Case) -> str:
    """The fingerprint of what decides the answer: the question or the messages, the system prompt, and the settings."""
    values = case.model_dump(mode="json", include={"question", "messages", "system_prompt"})
    if case.settings is not None:
        values["settings"] = case.settings.model_dump(mode="json", exclude_none=True)
    return fingerprint_of(values)


def grading_fingerprint(case: Case) -> str:
    """The fingerprint of what only graders see: ``expected``, and the fields that have no meaning of their own."""
    return fingerprint_of(case.model_dump(mode="json", include={"expected", "metadata"}))
