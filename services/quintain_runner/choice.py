"""Which rows of a dataset count: those that ``where`` selects, of them a sample, of that the first few. Pure.

A sample is the rows whose hashes are the smallest: two passes over any number of rows hold no row, the order of the
dataset stays, and a row that is added changes the sample by one row at most.
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
from quintain_runner.dataset_spec import DatasetSpec, Scalar


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows count. ``cut`` is the largest hash of the sample; None where every row is in it."""

    where: Mapping[str, tuple[Scalar, ...]]
    seed: int = 0
    cut: int | None = None
    limit: int | None = None

    def chosen(self, cases: Iterable[Case]) -> Iterator[Case]:
        """The cases that count, in their order."""
        left = self.limit
        for case in cases:
            if self.selects(case) and (self.cut is None or self.hash_of(case) <= self.cut):
                yield case
                left = None if left is None else left - 1
                if left == 0:
                    return

    def selects(self, case: Case) -> bool:
        """Whether each field of ``where`` is, or holds, one of its values."""
        return all(_is_one_of(field_of(case, field), values) for field, values in self.where.items())

    def hash_of(self, case: Case) -> int:
        """Where a case stands in the lottery of the sample."""
        digest = hashlib.blake2b(f"{self.seed} {case.id}".encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest)


EVERY_ROW: Final = Choice(where={})


class Lottery:
    """Draws a sample while the rows go by. It holds one number for each row of the sample."""

    def __init__(self, spec: DatasetSpec) -> None:
        self.choice = choice_of(spec)
        self._size = spec.sample
        self._held: list[int] = []
        self.selected = 0

    def pass_by(self, case: Case) -> bool:
        """A row goes by; whether ``where`` selects it."""
        if not self.choice.selects(case):
            return False
        self.selected += 1
        if self._size is not None:
            ticket = -self.choice.hash_of(case)
            if len(self._held) < self._size:
                heapq.heappush(self._held, ticket)
            else:
                heapq.heappushpop(self._held, ticket)
        return True

    @property
    def is_over(self) -> bool:
        """Whether no further row can count."""
        limit = self.choice.limit
        return self._size is None and limit is not None and self.selected >= limit

    def drawn(self) -> Choice:
        """The choice, once every row has gone by."""
        is_drawn = self._size is not None and self.selected > self._size
        return replace(self.choice, cut=-self._held[0]) if is_drawn else self.choice

    @property
    def chosen(self) -> int:
        """How many rows count."""
        bounds = [bound for bound in (self._size, self.choice.limit) if bound is not None]
        return min(self.selected, *bounds) if bounds else self.selected


def choice_of(spec: DatasetSpec) -> Choice:
    """The choice of a dataset as the file says it, its sample not yet drawn."""
    where = {field: tuple(values) if isinstance(values, list) else (values,) for field, values in spec.where.items()}
    return Choice(where=where, seed=spec.seed, limit=spec.limit)


def field_of(case: Case, name: str) -> JsonValue:
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


def _is_one_of(value: JsonValue, wanted: tuple[Scalar, ...]) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(_agree(one, want) for one in values for want in wanted)


def _agree(value: JsonValue, wanted: Scalar) -> bool:
    if isinstance(value, str) and not isinstance(wanted, str) and wanted is not None:
        # A cell of a CSV file is text, and so is many a number.
        return value.strip() == json.dumps(wanted)
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
