"""Narrows one command to some cases and targets of a run; all other rows stay as they are. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quintain.graders import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSelection:
    """The trials that one command may execute.

    ``case_ids`` are the ids of cases, and ``limit`` the number of first cases of the dataset, of those ids if there are
    any. ``targets`` are names of targets. None selects everything.
    """

    case_ids: frozenset[str] | None = None
    limit: int | None = None
    targets: frozenset[str] | None = None

    def mark_cases(self, cases: Iterable[Case]) -> Iterator[tuple[Case, bool]]:
        """Every case, and whether it is selected."""
        left = self.limit
        for case in cases:
            is_selected = (self.case_ids is None or case.id in self.case_ids) and left != 0
            if is_selected and left is not None:
                left -= 1
            yield case, is_selected

    def has_target(self, target: str) -> bool:
        """Whether trials of this target are selected."""
        return self.targets is None or target in self.targets

    def unknown_case_ids(self, cases: Iterable[Case]) -> list[str]:
        """The selected ids that no case has."""
        unknown = set(self.case_ids or ())
        for case in cases:
            unknown.discard(case.id)
            if not unknown:
                break
        return sorted(unknown)

    def to_wire(self) -> dict[str, object] | None:
        """What is selected, as ``run.json`` has it; None for everything."""
        selected: dict[str, object] = {}
        if self.case_ids is not None:
            selected["cases"] = sorted(self.case_ids)
        if self.limit is not None:
            selected["limit"] = self.limit
        if self.targets is not None:
            selected["targets"] = sorted(self.targets)
        return selected or None
