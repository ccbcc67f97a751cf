"""Requirements that every case must meet before a run, and the count of the cases that do not. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quintain.graders import Case
from quintain_runner.spec.files import suggestion

_CONVERSATION = "a conversation is messages, a list of {role, content}"
_SETTINGS = "settings of a call are keys of settings"
_PARTS = "images and files are parts of a message's content"
_FILE = "it is a key of the evaluation file or of a target"

#: Names of fields that look like a feature and are data, and what has that effect.
FEATURE_NAMES = {
    **dict.fromkeys(("turns", "conversation", "history", "chat_history", "dialog", "dialogue"), _CONVERSATION),
    **dict.fromkeys(("tools", "tool_choice", "temperature", "max_tokens", "top_p", "seed", "stop"), _SETTINGS),
    **dict.fromkeys(("response_format", "reasoning_effort", "model_settings"), _SETTINGS),
    **dict.fromkeys(("image", "images", "files", "attachments"), _PARTS),
    **dict.fromkeys(("graders", "assert", "repeats", "threshold", "timeout_seconds", "max_calls"), _FILE),
    **dict.fromkeys(("system", "system_message", "instructions"), "the system prompt is system_prompt"),
    **dict.fromkeys(("expected_output", "ideal"), "what graders compare with is expected"),
}

#: How many case ids an error message names.
MAX_NAMED_IDS = 5

#: Of so many fields of the cases' metadata the nearest is looked for.
_MAX_KNOWN_FIELDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequirement:
    """A condition on each case. The texts make the error message: ``problem`` is what is wrong with a case that does
    not meet it ("no expected"), ``reason`` why it matters, and ``fix`` what to do.

    ``field`` is the name of a field that only some cases need to have: if none has it, that is an error, which names
    the nearest of ``own_fields`` and of the cases' other fields; else the number of the others is a warning.
    """

    is_met: Callable[[Case], bool]
    problem: str
    reason: str
    fix: str
    field: str | None = None
    own_fields: Sequence[str] = ()


def feature_warnings(counts: Mapping[str, int], used: Collection[str]) -> Iterator[str]:
    """Yield a warning for each field of cases that looks like a feature and is data, but for those that are ``used``.

    ``counts`` are the numbers of rows that have them.
    """
    for name, count in counts.items():
        if name not in used:
            yield (
                f"the field {name!r} of {count:,} rows is data only: graders see it as metadata, and it changes no "
                f"call; {FEATURE_NAMES[name]}"
            )


class UnmetRequirements:
    """Counts the cases that do not meet each requirement, and keeps their first ids."""

    def __init__(self, requirements: Sequence[CaseRequirement]) -> None:
        self._requirements = requirements
        self._counts = [0] * len(requirements)
        self._first_ids: list[list[str]] = [[] for _ in requirements]
        self._needs_fields = any(requirement.field is not None for requirement in requirements)
        self._metadata_fields: dict[str, None] = {}

    def add(self, case: Case) -> None:
        """Check one case against every requirement."""
        if self._needs_fields and len(self._metadata_fields) < _MAX_KNOWN_FIELDS:
            self._metadata_fields |= dict.fromkeys(case.metadata)
        for index, requirement in enumerate(self._requirements):
            if not requirement.is_met(case):
                self._counts[index] += 1
                if len(self._first_ids[index]) < MAX_NAMED_IDS:
                    self._first_ids[index].append(case.id)

    def recounted(self, cases: Iterable[Case]) -> UnmetRequirements:
        """Count again from zero, over these cases."""
        unmet = UnmetRequirements(self._requirements)
        for case in cases:
            unmet.add(case)
        return unmet

    def __bool__(self) -> bool:
        return any(self._counts)

    def messages(self, case_count: int, *, warnings: bool = False) -> Iterator[str]:
        """Yield an error message, or a warning, for each requirement that some case does not meet; ``case_count`` is
        the number of all cases."""
        for requirement, count, ids in zip(self._requirements, self._counts, self._first_ids, strict=True):
            if not count or warnings is not (requirement.field is not None and count < case_count):
                continue
            more = f" and {count - len(ids):,} more" if count > len(ids) else ""
            where = f"in {count:,} of {case_count:,} cases (ids {', '.join(map(_shortened, ids))}{more})"
            fix = f"; {requirement.fix}"
            if requirement.field is not None and count == case_count:
                known = [
                    name for name in (*requirement.own_fields, *self._metadata_fields) if name != requirement.field
                ]
                fix = suggestion(requirement.field, known)
            yield f"{requirement.problem} {where}: {requirement.reason}{fix}"


def _shortened(case_id: str) -> str:
    return repr(case_id if len(case_id) <= 40 else f"{case_id[:40]}…")
