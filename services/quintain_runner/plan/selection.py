"""Selects the cases of a dataset, and counts those of them that do not meet the requirements of the run. No I/O."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from pydantic import JsonValue

from quintain.config.file_errors import suggestion
from quintain.graders import Case
from quintain_runner.spec.evaluation import DatasetSpec, Scalar
from quintain_runner.spec.prompts import case_field
from quintain_runner.spec.templates import TemplateError


@dataclass(frozen=True, slots=True)
class CaseSelection:
    """Which rows of a dataset are selected.

    ``where`` lists the allowed values of each field. ``max_hash`` is the largest hash of the sample, or None if there
    is no sample. ``limit`` is the most cases, or None. ``ids`` are those of the only cases, or None.
    """

    where: Mapping[str, tuple[Scalar, ...]]
    seed: int = 0
    max_hash: int | None = None
    limit: int | None = None
    ids: frozenset[str] | None = None

    def filter_cases(self, cases: Iterable[Case]) -> Iterator[Case]:
        """Iterate over the selected cases, in the order of the dataset; none is read after the last one."""
        return islice((case for case, is_selected in self.mark_cases(cases) if is_selected), self.limit)

    def mark_cases(self, cases: Iterable[Case]) -> Iterator[tuple[Case, bool]]:
        """Every case, and whether it is selected."""
        remaining = self.limit
        for case in cases:
            is_selected = (
                remaining != 0
                and self.matches_where(case)
                and (self.max_hash is None or self.hash_of(case) <= self.max_hash)
            )
            if is_selected and remaining is not None:
                remaining -= 1
            yield case, is_selected

    def matches_where(self, case: Case) -> bool:
        """Whether each field of ``where`` equals one of its values, or is a list that contains one of them, and ``ids``
        have the case's."""
        return (self.ids is None or case.id in self.ids) and all(
            _is_one_of(case_field(case, field), values) for field, values in self.where.items()
        )

    def hash_of(self, case: Case) -> int:
        """The 64-bit hash of the seed and the case's id; the cases with the smallest hashes form the sample."""
        digest = hashlib.blake2b(f"{self.seed} {case.id}".encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest)


ALL_CASES: Final = CaseSelection(where={})


class HashSampler:
    """Draws a sample in one pass over the rows; it holds one number for each row of the sample."""

    def __init__(self, selection: CaseSelection, sample_size: int | None) -> None:
        self.selection = selection
        self._sample_size = sample_size
        self._smallest_hashes: list[int] = []
        self.matching_count = 0

    def offer(self, case: Case) -> bool:
        """Process one case. Returns whether ``where`` selects it."""
        if not self.selection.matches_where(case):
            return False
        self.matching_count += 1
        if self._sample_size is not None:
            negated_hash = -self.selection.hash_of(case)
            if len(self._smallest_hashes) < self._sample_size:
                heapq.heappush(self._smallest_hashes, negated_hash)
            else:
                heapq.heappushpop(self._smallest_hashes, negated_hash)
        return True

    @property
    def is_complete(self) -> bool:
        """Whether no further case can be selected, so that reading can stop."""
        limit = self.selection.limit
        return self._sample_size is None and limit is not None and self.matching_count >= limit

    def final_selection(self) -> CaseSelection:
        """The selection with the hash limit of the sample, after all cases were offered."""
        is_sampled = self._sample_size is not None and self.matching_count > self._sample_size
        return replace(self.selection, max_hash=-self._smallest_hashes[0]) if is_sampled else self.selection

    @property
    def case_count(self) -> int:
        """The number of selected cases, after all cases were offered."""
        bounds = [bound for bound in (self._sample_size, self.selection.limit) if bound is not None]
        return min(self.matching_count, *bounds) if bounds else self.matching_count


def selection_of(spec: DatasetSpec) -> CaseSelection:
    """The selection that the evaluation file asks for, before the sample is drawn."""
    where = {field: tuple(values) if isinstance(values, list) else (values,) for field, values in spec.where.items()}
    return CaseSelection(where=where, seed=spec.seed, limit=spec.limit)


def _is_one_of(value: JsonValue, allowed: tuple[Scalar, ...]) -> bool:
    """Whether a value, or one item of a list, equals one of the allowed values."""
    values = value if isinstance(value, list) else [value]
    return any(_equals(item, candidate) for item in values for candidate in allowed)


def _equals(value: JsonValue, expected: Scalar) -> bool:
    """Whether a field's value equals the expected one; text equals a number, boolean or null if it is its JSON form."""
    if isinstance(value, str) and not isinstance(expected, str) and expected is not None:
        # Cells of a CSV file are text, also those with numbers.
        return value.strip() == json.dumps(expected)
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


_CONVERSATION = "a conversation is messages, a list of {role, content}"
_SETTINGS = "settings of a call are keys of settings"
_PARTS = "images and files are parts of a message's content"
_FILE = "it is a key of the evaluation file or of a target"

#: Names of fields that look like a feature and are data, and what has that effect.
FEATURE_NAMES = {
    **dict.fromkeys(("conversation", "history", "chat_history", "dialog", "dialogue"), _CONVERSATION),
    **dict.fromkeys(("tools", "tool_choice", "temperature", "max_tokens", "top_p", "seed", "stop"), _SETTINGS),
    **dict.fromkeys(("response_format", "reasoning_effort", "model_settings"), _SETTINGS),
    **dict.fromkeys(("image", "images", "files", "attachments"), _PARTS),
    **dict.fromkeys(("assert", "repeats", "threshold", "timeout_seconds", "max_calls"), _FILE),
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
    ``detail`` says more of one case.
    """

    is_met: Callable[[Case], bool]
    problem: str
    reason: str
    fix: str
    field: str | None = None
    own_fields: Sequence[str] = ()
    detail: Callable[[Case], str | None] = lambda _: None


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


#: The requirement on a case whose templates cannot be rendered; the error is the problem.
FILLS_TEMPLATES = CaseRequirement(
    is_met=bool,
    problem="",
    reason="every case fills each template",
    fix="add what is missing to them, leave them out with where, or write in the template what stands for it, as in "
    "{{ field | default('none') }}",
)


@dataclass(slots=True)
class _Cases:
    """Counts cases, each once, and keeps the first ids, and what is said of the first."""

    count: int = 0
    first_ids: list[str] = dataclasses.field(default_factory=list)
    last_id: str | None = None
    detail: str | None = None

    def add(self, case_id: str, detail: str | None) -> None:
        if case_id == self.last_id:
            return
        self.detail = self.detail or detail
        self.count, self.last_id = self.count + 1, case_id
        if self.count <= MAX_NAMED_IDS:
            self.first_ids.append(case_id)


class UnmetRequirements:
    """Counts the cases that do not meet each requirement, and keeps their first ids."""

    def __init__(self, requirements: Sequence[CaseRequirement]) -> None:
        self._requirements = requirements
        self._unmet = {requirement: _Cases() for requirement in requirements}
        self._needs_fields = any(requirement.field is not None for requirement in requirements)
        self._metadata_fields: dict[str, None] = {}

    def add(self, case: Case) -> None:
        """Check one case against every requirement, and whether it fills the templates that these render."""
        if self._needs_fields and len(self._metadata_fields) < _MAX_KNOWN_FIELDS:
            self._metadata_fields |= dict.fromkeys(case.metadata)
        for requirement in self._requirements:
            try:
                unmet = None if requirement.is_met(case) else requirement
            except TemplateError as error:
                unmet = replace(FILLS_TEMPLATES, problem=error.message)
            if unmet is not None:
                self._unmet.setdefault(unmet, _Cases()).add(case.id, unmet.detail(case))

    def recounted(self, cases: Iterable[Case]) -> UnmetRequirements:
        """Count again from zero, over these cases."""
        unmet = UnmetRequirements(self._requirements)
        for case in cases:
            unmet.add(case)
        return unmet

    def __bool__(self) -> bool:
        return any(cases.count for cases in self._unmet.values())

    def messages(self, case_count: int, *, warnings: bool = False) -> Iterator[str]:
        """Yield an error message, or a warning, for each requirement that some case does not meet; ``case_count`` is
        the number of all cases."""
        # Templates that are not filled come first: they hide what else a case does not meet.
        for requirement, cases in sorted(self._unmet.items(), key=lambda unmet: unmet[0] in self._requirements):
            count, ids = cases.count, cases.first_ids
            if not count or warnings is not (requirement.field is not None and count < case_count):
                continue
            more = f" and {count - len(ids):,} more" if count > len(ids) else ""
            where = f"in {count:,} of {case_count:,} cases (ids {', '.join(map(_shortened, ids))}{more})"
            fix = f"; {requirement.fix}{f' ({cases.detail})' if cases.detail else ''}"
            if requirement.field is not None and count == case_count:
                known = [
                    name for name in (*requirement.own_fields, *self._metadata_fields) if name != requirement.field
                ]
                fix = suggestion(requirement.field, known)
            yield f"{requirement.problem} {where}: {requirement.reason}{fix}"


def _shortened(case_id: str) -> str:
    return repr(case_id if len(case_id) <= 40 else f"{case_id[:40]}…")
