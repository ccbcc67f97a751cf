"""A grader's verdict on one answer: score, pass, reason and checks. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue


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
