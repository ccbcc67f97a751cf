"""Requirements that every case must meet before a run, and the count of the cases that do not. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from quintain.graders import Case

#: How many case ids an error message names.
MAX_NAMED_IDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequirement:
    """A condition on each case. The texts make the error message: ``problem`` is what is wrong with a case that does
    not meet it ("no expected"), ``reason`` why it matters, and ``fix`` what to do.
    """

    is_met: Callable[[Case], bool]
    problem: str
    reason: str
    fix: str


class UnmetRequirements:
    """Counts the cases that do not meet each requirement, and keeps their first ids."""

    def __init__(self, requirements: Sequence[CaseRequirement]) -> None:
        self._requirements = requirements
        self._counts = [0] * len(requirements)
        self._first_ids: list[list[str]] = [[] for _ in requirements]

    def add(self, case: Case) -> None:
        """Check one case against every requirement."""
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

    def messages(self, case_count: int) -> Iterator[str]:
        """Yield an error message for each requirement that some case does not meet; ``case_count`` is the number of all
        cases."""
        for requirement, count, ids in zip(self._requirements, self._counts, self._first_ids, strict=True):
            if count:
                more = f" and {count - len(ids):,} more" if count > len(ids) else ""
                named = ", ".join(map(_shortened, ids)) + more
                yield (
                    f"{requirement.problem} in {count:,} of {case_count:,} cases (ids {named}): {requirement.reason}; "
                    f"{requirement.fix}"
                )


def _shortened(case_id: str) -> str:
    return repr(case_id if len(case_id) <= 40 else f"{case_id[:40]}…")
