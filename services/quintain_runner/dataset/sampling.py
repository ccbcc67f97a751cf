"""Selects the cases of a dataset: ``where``, then a sample by hash, then the first ``limit`` cases. No I/O.

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
from quintain_runner.spec.evaluation import DatasetSpec, Scalar
from quintain_runner.spec.prompts import case_field


@dataclass(frozen=True, slots=True)
class CaseSelection:
    """Which rows of a dataset are selected.

    ``where`` lists the allowed values of each field. ``max_hash`` is the largest hash of the sample, or None if there
    is no sample. ``limit`` is the most cases, or None.
    """

    where: Mapping[str, tuple[Scalar, ...]]
    seed: int = 0
    max_hash: int | None = None
    limit: int | None = None

    def filter_cases(self, cases: Iterable[Case]) -> Iterator[Case]:
        """Iterate over the selected cases, in the order of the dataset."""
        remaining = self.limit
        for case in cases:
            if self.matches_where(case) and (self.max_hash is None or self.hash_of(case) <= self.max_hash):
                yield case
                remaining = None if remaining is None else remaining - 1
                if remaining == 0:
                    return

    def matches_where(self, case: Case) -> bool:
        """Whether each field of ``where`` equals one of its values, or is a list that contains one of them."""
        return all(_is_one_of(case_field(case, field), values) for field, values in self.where.items())

    def hash_of(self, case: Case) -> int:
        """The 64-bit hash of the seed and the case's id; the cases with the smallest hashes form the sample."""
        digest = hashlib.blake2b(f"{self.seed} {case.id}".encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest)


ALL_CASES: Final = CaseSelection(where={})


class HashSampler:
    """Draws a sample in one pass over the rows; it holds one number for each row of the sample."""

    def __init__(self, spec: DatasetSpec) -> None:
        self.selection = selection_of(spec)
        self._sample_size = spec.sample
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
