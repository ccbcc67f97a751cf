"""Selects the cases of a dataset: `where`, then a sample by hash, then the first `limit` cases. No I/O.

A sample is the cases with the smallest hashes. It is drawn in two passes without holding rows in memory, keeps the
order of the dataset, and changes by at most one case when a case is added.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from quintain.graders import Case
from quintain_runner.spec.dataset import DatasetSpec, Scalar


@dataclass(frozen=True, slots=True)
class CaseSelection:
    """Which rows count. ``max_hash`` is the largest hash of the sample; None where every row is in it."""

    where: Mapping[str, tuple[Scalar, ...]]
    seed: int = 0
    max_hash: int | None = None
    limit: int | None = None

    def filter_cases(self, cases: Iterable[Case]) -> Iterator[Case]:
        """The cases that count, in their order."""
        left = self.limit
        for case in cases:
            if self.matches_where(case) and (self.max_hash is None or self.hash_of(case) <= self.max_hash):
                yield case
                left = None if left is None else left - 1
                if left == 0:
                    return

    def matches_where(self, case: Case) -> bool:
        """Whether each field of ``where`` is, or holds, one of its values."""
        return all(_is_one_of(case_field(case, field), values) for field, values in self.where.items())

    def hash_of(self, case: Case) -> int:
        """Where a case stands in the lottery of the sample."""
        digest = hashlib.blake2b(f"{self.seed} {case.id}".encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest)


ALL_CASES: Final = CaseSelection(where={})


class HashSampler:
    """Draws a sample while the rows go by. It holds one number for each row of the sample."""

    def __init__(self, spec: DatasetSpec) -> None:
        self.selection = selection_of(spec)
        self._sample_size = spec.sample
        self._smallest_hashes: list[int] = []
        self.matching_count = 0

    def offer(self, case: Case) -> bool:
        """A row goes by; whether ``where`` selects it."""
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
        """Whether no further row can count."""
        limit = self.selection.limit
        return self._sample_size is None and limit is not None and self.matching_count >= limit

    def final_selection(self) -> CaseSelection:
        """The choice, once every row has gone by."""
        is_sampled = self._sample_size is not None and self.matching_count > self._sample_size
        return replace(self.selection, max_hash=-self._smallest_hashes[0]) if is_sampled else self.selection

    @property
    def case_count(self) -> int:
        """How many rows count."""
        bounds = [bound for bound in (self._sample_size, self.selection.limit) if bound is not None]
        return min(self.matching_count, *bounds) if bounds else self.matching_count


def selection_of(spec: DatasetSpec) -> CaseSelection:
    """The choice of a dataset as the file says it, its sample not yet drawn."""
    where = {field: tuple(values) if isinstance(values, list) else (values,) for field, values in spec.where.items()}
    return CaseSelection(where=where, seed=spec.seed, limit=spec.limit)


def case_field(case: Case, name: str) -> JsonValue:
    """A field of a row, whichever it is; dots lead into objects. None where there is none."""
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


def _is_one_of(value: JsonValue, allowed: tuple[Scalar, ...]) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(_equals(one, candidate) for one in values for candidate in allowed)


def _equals(value: JsonValue, expected: Scalar) -> bool:
    if isinstance(value, str) and not isinstance(expected, str) and expected is not None:
        # A cell of a CSV file is text, and so is many a number.
        return value.strip() == json.dumps(expected)
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)
